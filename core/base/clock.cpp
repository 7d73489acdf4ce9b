#include "core/base/clock.h"

#include <time.h>

namespace standfast {

Nanos now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanos>(time.tv_sec) * kSecond + time.tv_nsec;
}

}  // namespace standfast
