// The emulator's clock and its naps.
#pragma once

#include <time.h>

#include <cstdint>

namespace standfast::emulator {

inline std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// May end early, by a signal.
inline void sleep_ns(std::int64_t nanoseconds) {
  if (nanoseconds <= 0) return;
  timespec span{};
  span.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
  span.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  nanosleep(&span, nullptr);
}

}  // namespace standfast::emulator
