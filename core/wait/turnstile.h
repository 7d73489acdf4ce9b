// Lets operations through one after another, in the order in which they asked. An operation takes
// the sending half, the receiving half, or both at once, so that a send and a recv can run side by
// side and a collective runs alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "core/base/clock.h"
#include "core/control/abort.h"
#include "core/wait/wait.h"

namespace standfast {

enum class Halves : std::uint8_t { kSending = 1, kReceiving = 2, kBoth = 3 };

class Turnstile {
 public:
  struct Ticket {
    Halves halves;
    std::uint32_t sending;
    std::uint32_t receiving;
  };

  // The place in the queue is fixed here.
  Ticket take(Halves halves);
  // Until every operation before this one has left. What is not kOk has ended the group: nobody is
  // let through later.
  Outcome enter(const Ticket& ticket, const AbortWord& abort, const Limits& limits);
  void leave(const Ticket& ticket);

 private:
  bool is_turn(const Ticket& ticket) const;

  // Next tickets of both halves in one word: a collective gets both in one step. Relaxed: only
  // order counts.
  std::atomic<std::uint64_t> next_{0};
  // Who may pass. leave() stores, is_turn() loads; sequentially consistent against `sleepers_`:
  // either the leaver sees the sleeper or the sleeper sees its turn. Also hands the operation's
  // memory from thread to thread.
  std::atomic<std::uint32_t> sending_{0};
  std::atomic<std::uint32_t> receiving_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;  // with turned_, for sleepers only
  std::condition_variable turned_;
};

}  // namespace standfast
