#include "core/base/clock.h"

#include <time.h>

namespace standfast {
namespace {

#ifdef CLOCK_MONOTONIC_COARSE
constexpr clockid_t kCoarse = CLOCK_MONOTONIC_COARSE;
#else
constexpr clockid_t kCoarse = CLOCK_MONOTONIC_RAW_APPROX;
#endif

Nanos read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<Nanos>(time.tv_sec) * kSecond + time.tv_nsec;
}

}  // namespace

Nanos now_ns() { return read_clock(CLOCK_MONOTONIC); }

Nanos coarse_now_ns() { return read_clock(kCoarse); }

}  // namespace standfast
