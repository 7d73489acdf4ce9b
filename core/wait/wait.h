// The only code that may block. A wait looks at data, abort word, clock and signals on each turn;
// it spins briefly, yields, then sleeps on descriptors that the peer or the watch can ring, and
// wakes at least every 100 ms.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/bell.h"
#include "core/base/clock.h"
#include "core/control/abort.h"
#include "core/control/board.h"
#include "core/fabric/fabric.h"

namespace standfast {

enum class [[nodiscard]] Outcome : std::uint8_t {
  kOk,
  kPending,      // between the stages of a wait: nothing yet, go on. Never returned by until()
  kVerdict,      // the abort word is set
  kMismatch,     // fault() carries a frame of another operation
  kLeft,         // fault() said goodbye; null: somebody who does not take part in this collective
  kBroken,       // fault() ended without goodbye
  kTimeout,      // the operation's own time limit
  kInterrupted,  // a signal handler asks us to end
  kDamaged,      // what came is not what was sent; Comm::finding() says more
  kLimit,        // a result that doesn't fit what was announced
};

// Returns from the caller with whatever is not kOk.
#define SF_TRY(expression)                                                  \
  do {                                                                      \
    const ::standfast::Outcome outcome_of_try = (expression);               \
    if (outcome_of_try != ::standfast::Outcome::kOk) return outcome_of_try; \
  } while (false)

// How long a wait stays awake. Fewer cores than ranks: yield early, for the peer needs the core.
struct SpinBudget {
  int spins_min = 0;
  int spins_max = 0;
  Nanos yielding_ns = 0;
};
SpinBudget spin_budget(int ranks_here, int cores);
// Cores this process may run on.
int usable_cores();

// True when a signal handler has something to raise. Runs in the waiting thread.
using InterruptCheck = bool (*)();

// Something that the caller holds and other threads may need, such as an interpreter's lock. It is
// given back, in the waiting thread, before a wait takes longer than a few turns.
class Hold {
 public:
  // Again does nothing.
  virtual void give_back() = 0;

 protected:
  ~Hold() = default;
};

// What bounds one operation.
struct Limits {
  Nanos deadline = kNever;  // absolute
  InterruptCheck interrupted = nullptr;
  Hold* hold = nullptr;
  // A collective's number, and the last one that all ranks take part in; see Watch.
  std::uint32_t collective = 0;
  const std::atomic<std::uint32_t>* last_collective = nullptr;
  // For poll_until(): for how long nothing may move, and which of the ranks that are needed is gone
  // (-1: none).
  Nanos patience = kNever;
  std::function<int()> gone = nullptr;
};

// What an attempt came to that goes over no wire.
struct Polled {
  Turn turn = Turn::kNotYet;
  int peer = -1;       // for whom it waits, or who is at fault
  bool moved = false;  // something came or went
};

class Waiter {
 public:
  // `neighbour` is the bell of the thread that may use the wires' other half meanwhile. `pumps`:
  // this thread holds the sending half of all wires and moves them on while it waits. `board`:
  // where waits are told; null for none.
  Waiter(const AbortWord& abort, const Bell& bell, const Bell& neighbour, bool pumps,
         SpinBudget budget, const std::vector<std::unique_ptr<Wire>>& wires,
         HalfBoard* board = nullptr)
      : abort_(abort),
        bell_(bell),
        neighbour_(neighbour),
        pumps_(pumps),
        budget_(budget),
        spins_(budget.spins_max),
        wires_(wires),
        board_(board) {}

  void begin(const Limits& limits) {
    limits_ = limits;
    fault_ = nullptr;
    fault_peer_ = -1;
    waiting_for_ = -1;
    first_wait_ns_ = 0;
  }

  // Repeats attempt() -> Turn on this wire's half until it is done or something ends the wait.
  template <class Attempt>
  Outcome until(Wire& wire, Half half, Attempt&& attempt) {
    const Turn turn = attempt();
    if (turn == Turn::kDone) [[likely]]
      return Outcome::kOk;
    if (turn != Turn::kNotYet) return faulted(turn, wire);
    return wait(wire, half, Try{&attempt, [](void* self) {
                                  return (*static_cast<std::remove_reference_t<Attempt>*>(self))();
                                }});
  }

  // Repeats attempt(quiet) -> Polled, which wakes nobody and moves many things at once, until it is
  // done or something ends the wait. `quiet`: for how long nothing has moved.
  Outcome poll_until(const std::function<Polled(Nanos quiet)>& attempt);

  // Until no wire needs the caller's memory any more.
  Outcome flush_all();
  // Until there is a verdict, but no longer than the limit.
  const Verdict* verdict_within(Nanos limit);

  // The wire that ended the last wait, or null.
  const Wire* fault() const { return fault_; }
  // Whose part of a polled attempt ended the last wait, or -1.
  int fault_peer() const { return fault_peer_; }
  // The rank that the last unfinished wait was for, or -1.
  int waiting_for() const { return waiting_for_; }
  // Since the operation first had to wait.
  Nanos waited() const { return first_wait_ns_ == 0 ? 0 : now_ns() - first_wait_ns_; }

 private:
  struct Try {
    void* attempt;
    Turn (*call)(void*);
    Turn operator()() const { return call(attempt); }
  };

  Outcome faulted(Turn turn, Wire& wire);
  Outcome polled_enough(const Polled& polled, Nanos now, Nanos quiet);
  Outcome wait(Wire& wire, Half half, Try attempt);
  Outcome spin(Wire& wire, Try attempt);
  Outcome yield_once(Wire& wire, Try attempt);
  Outcome yield(Wire& wire, Try attempt, Nanos start);
  Outcome sleep(Wire& wire, Half half, Try attempt);
  Outcome slumber(Wire& wire, Half half, Try attempt, Nanos since);
  Outcome settle(Turn turn, Wire& wire);
  Outcome pump();
  bool is_deserted() const;
  void give_back() {
    if (limits_.hold != nullptr) limits_.hold->give_back();
  }
  bool interrupted(Nanos now, bool at_once = false);
  // True if a signal cut it short.
  bool doze(Wire& wire, Half half, Nanos since);
  bool must_nap(const Wire& wire) const;
  bool nap(Nanos waited) const;

  const AbortWord& abort_;
  const Bell& bell_;
  const Bell& neighbour_;
  const bool pumps_;
  const SpinBudget budget_;
  int spins_;
  const std::vector<std::unique_ptr<Wire>>& wires_;
  HalfBoard* const board_;
  Limits limits_;
  Wire* fault_ = nullptr;
  int fault_peer_ = -1;
  int waiting_for_ = -1;
  Nanos first_wait_ns_ = 0;
  Nanos signals_checked_ns_ = 0;
};

}  // namespace standfast
