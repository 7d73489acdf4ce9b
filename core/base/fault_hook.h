// For tests: makes a thread of the core throw at its next turn, as if something impossible had
// happened, or the next verification find damage. Costs a relaxed load where it is asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>

namespace standfast {

enum class ThreadKind : int { kNone = 0, kWatch, kWorker };

inline std::atomic<ThreadKind> thread_to_fail{ThreadKind::kNone};

inline void throw_if_asked(ThreadKind here) {
  if (thread_to_fail.load(std::memory_order_relaxed) != here) [[likely]]
    return;
  thread_to_fail.store(ThreadKind::kNone, std::memory_order_relaxed);
  throw std::runtime_error("a test made this thread fail");
}

inline std::atomic<bool> damages_next{false};

// Something for a digest to be wrong by, once; else 0.
inline std::uint64_t damage_asked() {
  if (!damages_next.load(std::memory_order_relaxed)) [[likely]]
    return 0;
  damages_next.store(false, std::memory_order_relaxed);
  return 1;
}

}  // namespace standfast
