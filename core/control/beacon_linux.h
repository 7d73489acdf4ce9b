// The word by which a rank shows that it lives, and how one waits on it: a robust futex, which the
// kernel marks when the thread that holds it ends, and before it takes the process apart. Used by
// the beacon and by the sentinel.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "core/base/clock.h"

namespace standfast {

// 0, the holder's thread id | FUTEX_WAITERS, that with FUTEX_OWNER_DIED in place of the id (by the
// kernel), or kBeaconLeft. Written with release and read with acquire: a neighbour that sees it
// held may rely on the list that was registered before.
using BeaconWord = std::atomic<std::uint32_t>;
static_assert(sizeof(BeaconWord) == 4 && BeaconWord::is_always_lock_free);

struct alignas(64) BeaconSlot {
  BeaconWord word;
};

inline constexpr std::uint32_t kBeaconUntaken = 0;
inline constexpr std::uint32_t kBeaconLeft = FUTEX_TID_MASK;  // no thread has this id

enum class BeaconState { kUntaken, kHeld, kDied, kLeft };

constexpr BeaconState beacon_state(std::uint32_t word) {
  if ((word & FUTEX_OWNER_DIED) != 0) return BeaconState::kDied;
  if (word == kBeaconUntaken) return BeaconState::kUntaken;
  return word == kBeaconLeft ? BeaconState::kLeft : BeaconState::kHeld;
}

// Until the word is another than `seen`, somebody wakes us, or the time is over; may return early.
inline void beacon_wait(const BeaconWord& word, std::uint32_t seen, Nanos span) {
  const timespec limit = {static_cast<time_t>(span / kSecond), static_cast<long>(span % kSecond)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void beacon_wake(const BeaconWord& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace standfast
