// The one clock: monotonic nanoseconds, the same for all processes of a host.
#pragma once

#include <cstdint>

namespace standfast {

using Nanos = std::int64_t;

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Nanos kNever = INT64_MAX;

Nanos now_ns();
// A few milliseconds old, and cheaper: for what is asked after every operation. Compared with
// itself only.
Nanos coarse_now_ns();

constexpr Nanos from_seconds(double seconds) {
  constexpr double kYears = 3e8;  // ten of them: beyond any limit, and far from overflow
  return static_cast<Nanos>((seconds < kYears ? seconds : kYears) * 1e9);
}

constexpr double to_seconds(Nanos nanos) { return static_cast<double>(nanos) * 1e-9; }

// `start + span` without overflow; a span of kNever means never.
constexpr Nanos deadline_after(Nanos start, Nanos span) {
  return span >= kNever - start ? kNever : start + span;
}

}  // namespace standfast
