// What a system tells about connections and processes, each in its own way. Used by the watch.
// system_linux.cpp, system_macos.cpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/clock.h"

namespace standfast {

// How long a dead host is waited for. Does nothing for sockets that are not TCP.
struct ConnectionLimits {
  // That long without an acknowledgement ends the connection; kNever: the system's own limit. Only
  // for links that carry little: a full receiver counts as no answer.
  Nanos unanswered = kNever;
  // The pause between two attempts to send grows no further than this, so that a network that is
  // there again is noticed; kNever: the system's own.
  Nanos retry_pause = kNever;
  // An idle connection outlives a network that is away for this long, and shows in half the time
  // that it is there.
  Nanos outage = 0;
};
// With keepalive: after 10 s idle or less, then probes 3 s apart, 3 or as many as `outage` needs.
constexpr int idle_for(Nanos outage) {
  constexpr Nanos kIdleMax = 10;
  if (outage == 0) return static_cast<int>(kIdleMax);
  return static_cast<int>(std::clamp<Nanos>(outage / (2 * kSecond), 1, kIdleMax));
}
constexpr int probes_for(Nanos outage, int interval_s) {
  constexpr int kProbesMin = 3;
  constexpr Nanos kProbesMax = 120;
  const Nanos needed = std::min(outage / (interval_s * kSecond) + 1, kProbesMax);
  return std::max(kProbesMin, static_cast<int>(needed));
}
void limit_connection(int fd, const ConnectionLimits& limits);

// How many bytes the peer's host has acknowledged; grows while it answers.
std::uint64_t acknowledged_bytes(int fd);
// Has it acknowledged everything?
bool is_all_acknowledged(int fd);

// For how long the peer's host has owed an acknowledgement; 0 if it owes none, or that can't be
// known. A receiver that is full but answers owes none.
Nanos unacknowledged_for(int fd);

// How long ago the peer's host last acknowledged anything; kNever where that is not known.
Nanos acknowledgement_age(int fd);

// How a process is: 'T' stopped, 't' traced, 'D' uninterruptible, other letters as the system has
// them; 0: not known.
char process_state(int pid);

// What tells a descriptor from another that later has the same number; 0: it is not open.
std::uint64_t identity_of(int fd);

}  // namespace standfast
