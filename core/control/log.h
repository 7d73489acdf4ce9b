// Lines that the watch writes itself, since the interpreter may be stuck. They go to the place of
// stderr, through a description of their own where the system allows it: it does not block, while
// the program's own stays as it is.
#pragma once

#include <string>

#include "core/base/fd.h"

namespace standfast {

class Log {
 public:
  // `rank` stands at the start of each line. Not `enabled`: nothing is written but last words.
  Log(int rank, bool enabled);

  // Returns at once; what does not go at once is lost.
  void line(const std::string& text) const;
  void last_words(const std::string& text) const;

 private:
  const int rank_;
  const bool enabled_;
  Fd own_;
};

}  // namespace standfast
