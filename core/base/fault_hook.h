// For tests: makes a thread of the core throw at its next turn, as if something impossible had
// happened. Costs a relaxed load where it is asked.
#pragma once

#include <atomic>
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

}  // namespace standfast
