// A descriptor that any thread of this process can ring to wake a sleeper. A pipe, so that it is
// the same everywhere.
#pragma once

#include "core/base/fd.h"

namespace standfast {

class Bell {
 public:
  Bell();  // throws SystemError
  // Never blocks: a bell that is full of rings has been heard.
  void ring() const;
  void silence() const;
  int fd() const { return read_.get(); }
  int ring_fd() const { return write_.get(); }

 private:
  Fd read_;
  Fd write_;
};

}  // namespace standfast
