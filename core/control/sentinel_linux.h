// Starts and reaps the sentinel, the small process that looks after the beacon of a rank whose
// neighbours can't tell all others (core/sentinel/ is its program). Owned by the beacon.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace standfast {

class Sentinel {
 public:
  // The rank holds its beacon already. `memory` and `links` are inherited, and stay the caller's.
  // Throws SystemError.
  Sentinel(const std::string& program, int memory, int rank, const std::vector<int>& links,
           const std::vector<std::byte>& last_words);
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;
  // Once the beacon was given up.
  ~Sentinel();

 private:
  pid_t pid_ = -1;
};

}  // namespace standfast
