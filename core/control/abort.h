// The abort word: the one atomic that carries "there is a verdict" from the watch to every wait.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "core/control/verdict.h"

namespace standfast {

class AbortWord {
 public:
  AbortWord() = default;
  AbortWord(const AbortWord&) = delete;
  AbortWord& operator=(const AbortWord&) = delete;
  ~AbortWord() { delete verdict_.load(std::memory_order_relaxed); }

  // The first verdict wins and never changes; false if there was one already.
  bool raise(Verdict verdict) {
    auto mine = std::make_unique<const Verdict>(std::move(verdict));
    const Verdict* none = nullptr;
    // Release: whoever sees the pointer sees what it points to. Partner: verdict().
    if (!verdict_.compare_exchange_strong(none, mine.get(), std::memory_order_release,
                                          std::memory_order_relaxed)) {
      return false;
    }
    mine.release();
    return true;
  }

  // Null while all is well. Partner: raise().
  const Verdict* verdict() const { return verdict_.load(std::memory_order_acquire); }

 private:
  std::atomic<const Verdict*> verdict_{nullptr};
};

}  // namespace standfast
