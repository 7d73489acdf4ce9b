#include "core/wait/wait.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "core/base/guard.h"

namespace standfast {
namespace {

// About a microsecond, and fifty.
constexpr int kSpinsMin = 20;
constexpr int kSpinsMax = 1000;
// With more ranks than cores the peer waits for this core more often than not, and a yield brings
// it there sooner than a spin: 4 ranks on 2 cores add up 8 bytes in 2.1 us, in 3.0 with 20 spins.
// These few are for a peer that runs on another core.
constexpr int kSpinsCrowded = 3;
// For so many turns a wait keeps what its caller holds: most waits end sooner. That is a few
// microseconds over shared memory, and a few ten over TCP, where a turn is a system call.
constexpr int kHoldingSpins = 50;
constexpr Nanos kSleepMax = 100 * kMillisecond;
// Where data wakes nobody: a nap is an eighth of the wait so far, within these limits.
constexpr Nanos kNapMin = 50 * kMicrosecond;
constexpr Nanos kNapMax = 400 * kMicrosecond;
// Signals are looked at this often while we are awake; asleep they interrupt the poll.
constexpr Nanos kSignalEvery = 50 * kMillisecond;
// What a rank sent before its end may still be on its way.
constexpr Nanos kGoneGrace = 100 * kMillisecond;
// A turn that took longer than this was spent stopped, or asleep with the whole machine: no time in
// which a peer could have been heard.
constexpr Nanos kTurnMax = 500 * kMillisecond;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

int usable_cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

SpinBudget spin_budget(int ranks_here, int cores) {
  constexpr Nanos kYielding = 400 * kMicrosecond;
  const bool is_crowded = ranks_here > cores;
  return {.spins_min = is_crowded ? kSpinsCrowded : kSpinsMin,
          .spins_max = is_crowded ? kSpinsCrowded : kSpinsMax,
          .yielding_ns = kYielding};
}

Outcome Waiter::faulted(Turn turn, Wire& wire) {
  fault_ = &wire;
  waiting_for_ = wire.peer();
  switch (turn) {
    case Turn::kMismatch: return Outcome::kMismatch;
    case Turn::kLeft: return Outcome::kLeft;
    default: return Outcome::kBroken;
  }
}

Outcome Waiter::settle(Turn turn, Wire& wire) {
  if (turn == Turn::kDone) return Outcome::kOk;
  if (turn != Turn::kNotYet) return faulted(turn, wire);
  const bool is_over = kGuarded && abort_.verdict() != nullptr;
  return is_over ? Outcome::kVerdict : Outcome::kPending;
}

// A wire may hold frames back for company; whoever waits has no more to say. With more ranks than
// cores the first yield ends most waits: what the caller holds is given back only after it.
Outcome Waiter::wait(Wire& wire, Half half, Try attempt) {
  SF_TRY(pump());
  Outcome outcome = spin(wire, attempt);
  if (outcome != Outcome::kPending) return outcome;
  waiting_for_ = wire.peer();
  const Nanos start = now_ns();
  if (first_wait_ns_ == 0) first_wait_ns_ = start;
  outcome = yield_once(wire, attempt);
  if (outcome == Outcome::kPending) {
    give_back();
    if (interrupted(start)) return Outcome::kInterrupted;
    outcome = yield(wire, attempt, start);
  }
  if (outcome == Outcome::kPending) outcome = sleep(wire, half, attempt);
  if (outcome == Outcome::kOk) waiting_for_ = -1;
  return outcome;
}

// Spinning pays while the peer runs on another core. Where it does not - it is late, or waits for
// this very core - the next wait spins less; where it does, more.
Outcome Waiter::spin(Wire& wire, Try attempt) {
  for (int turn = 0; turn < spins_; ++turn) {
    if (turn == kHoldingSpins) give_back();
    pause_core();
    const Outcome outcome = settle(attempt(), wire);
    if (outcome == Outcome::kPending) continue;
    spins_ = std::min(2 * spins_, budget_.spins_max);
    return outcome;
  }
  spins_ = std::max(spins_ / 2, budget_.spins_min);
  return Outcome::kPending;
}

Outcome Waiter::yield_once(Wire& wire, Try attempt) {
  sched_yield();
  SF_TRY(pump());
  return settle(attempt(), wire);
}

Outcome Waiter::yield(Wire& wire, Try attempt, Nanos start) {
  while (now_ns() - start < budget_.yielding_ns) {
    const Outcome outcome = yield_once(wire, attempt);
    if (outcome != Outcome::kPending) return outcome;
  }
  return Outcome::kPending;
}

// A wait that lasts is told to the watch (doze), which knows for how long it may.
Outcome Waiter::sleep(Wire& wire, Half half, Try attempt) {
  const Outcome outcome = slumber(wire, half, attempt, now_ns());
  if (board_ != nullptr) board_->goes_on();
  return outcome;
}

Outcome Waiter::slumber(Wire& wire, Half half, Try attempt, Nanos since) {
  for (;;) {
    SF_TRY(pump());
    wire.asleep(half);
    const Outcome outcome = settle(attempt(), wire);
    const bool signalled = outcome == Outcome::kPending && doze(wire, half, since);
    wire.awake(half);
    if (outcome != Outcome::kPending) return outcome;
    if (interrupted(now_ns(), signalled)) return Outcome::kInterrupted;
    if (is_deserted()) return Outcome::kLeft;
    // Time is up only if a last look finds nothing: the sleep may have ended with data.
    if (now_ns() >= limits_.deadline) {
      const Outcome last = settle(attempt(), wire);
      return last == Outcome::kPending ? Outcome::kTimeout : last;
    }
  }
}

// Sleeps until the wire, a wire with frames to send, the bell or a signal, but at most kSleepMax.
bool Waiter::doze(Wire& wire, Half half, Nanos since) {
  if (must_nap(wire)) {
    if (board_ != nullptr) board_->waits_for(wire.peer(), since);
    const bool signalled = nap(now_ns() - since);
    if (board_ != nullptr) board_->looks(wire.peer(), since, now_ns());
    return signalled;
  }
  constexpr int kPollMax = 256;
  pollfd fds[kPollMax];
  int count = 0;
  fds[count++] = {bell_.fd(), POLLIN, 0};
  const short events = wire.wakes_by_reading(half) ? POLLIN : POLLOUT;
  fds[count++] = {wire.poll_fd(), events, 0};
  if (pumps_) {
    for (const auto& other : wires_) {
      // What the peer reads by itself needs no help, and a doorbell can always be written to.
      const bool helps = other && other->sending() && !other->wakes_by_reading(Half::kSending);
      if (helps && count < kPollMax) {
        fds[count++] = {other->poll_fd(), POLLOUT, 0};
      }
    }
  }
  const Nanos now = now_ns();
  const Nanos until = std::min(limits_.deadline, deadline_after(now, kSleepMax));
  const Nanos span = std::max<Nanos>(0, until - now);
  const int span_ms = static_cast<int>((span + kMillisecond - 1) / kMillisecond);
  if (board_ != nullptr) board_->waits_for(wire.peer(), since);
  const int ready = poll(fds, static_cast<nfds_t>(count), span_ms);
  if (board_ != nullptr) board_->looks(wire.peer(), since, now_ns());
  if (ready <= 0) return ready < 0;
  if (fds[0].revents != 0) bell_.silence();
  if (fds[1].revents != 0 && wire.answer_bell(half)) neighbour_.ring();
  return false;
}

// One such wire is enough: it must be moved on.
bool Waiter::must_nap(const Wire& wire) const {
  if (wire.must_be_polled()) return true;
  return pumps_ && std::any_of(wires_.begin(), wires_.end(), [](const auto& other) {
           return other && other->sending() && other->must_be_polled();
         });
}

// The abort word is looked at after each nap, so the bell need not end one. True if a signal did.
bool Waiter::nap(Nanos waited) const {
  const Nanos left = std::max<Nanos>(0, limits_.deadline - now_ns());
  const Nanos span = std::min(std::clamp(waited / 8, kNapMin, kNapMax), left);
  const timespec rest = {0, span};
  return nanosleep(&rest, nullptr) != 0;
}

// As the waits for a wire, but that nothing can wake this one: it spins, yields, then naps.
Outcome Waiter::poll_until(const std::function<Polled(Nanos quiet)>& attempt) {
  give_back();
  Nanos seen_at = 0;  // the last turn; 0: none since something moved
  Nanos quiet = 0;
  for (int spins = 0;;) {
    const Polled polled = attempt(quiet);
    if (polled.turn == Turn::kDone) return Outcome::kOk;
    if (polled.moved) seen_at = quiet = spins = 0;
    if (polled.turn == Turn::kNotYet && !polled.moved && ++spins < budget_.spins_max) {
      pause_core();
      if (kGuarded && abort_.verdict() != nullptr) return Outcome::kVerdict;
      continue;
    }
    const Nanos now = now_ns();
    if (seen_at != 0) quiet += std::min(now - seen_at, kTurnMax);
    seen_at = now;
    const Outcome outcome = polled_enough(polled, now, quiet);
    if (outcome != Outcome::kPending) return outcome;
    if (polled.moved) continue;
    if (quiet < budget_.yielding_ns) {
      sched_yield();
    } else if (nap(quiet) && interrupted(now_ns(), true)) {
      return Outcome::kInterrupted;
    }
  }
}

// What ends a polled wait, if anything does.
Outcome Waiter::polled_enough(const Polled& polled, Nanos now, Nanos quiet) {
  waiting_for_ = polled.peer;
  if (first_wait_ns_ == 0) first_wait_ns_ = now;
  if (polled.turn != Turn::kNotYet) {
    fault_peer_ = polled.peer;
    return polled.turn == Turn::kMismatch ? Outcome::kMismatch : Outcome::kBroken;
  }
  if (kGuarded && abort_.verdict() != nullptr) return Outcome::kVerdict;
  if (interrupted(now)) return Outcome::kInterrupted;
  if (quiet >= kGoneGrace && limits_.gone) fault_peer_ = limits_.gone();
  if (fault_peer_ >= 0 || is_deserted()) return Outcome::kLeft;
  const bool is_late = now >= limits_.deadline || quiet >= limits_.patience;
  return is_late && !polled.moved ? Outcome::kTimeout : Outcome::kPending;
}

Outcome Waiter::pump() {
  if (!pumps_) return Outcome::kOk;
  for (const auto& wire : wires_) {
    if (wire && wire->sending() && wire->flush() == Turn::kBroken) {
      return faulted(Turn::kBroken, *wire);
    }
  }
  return Outcome::kOk;
}

// Somebody left before this collective: it can't end well, whoever it is that we wait for.
bool Waiter::is_deserted() const {
  return limits_.last_collective != nullptr &&
         limits_.collective > limits_.last_collective->load(std::memory_order_acquire);
}

bool Waiter::interrupted(Nanos now, bool at_once) {
  if (limits_.interrupted == nullptr) return false;
  if (!at_once && now - signals_checked_ns_ < kSignalEvery) return false;
  signals_checked_ns_ = now;
  return limits_.interrupted();
}

Outcome Waiter::flush_all() {
  for (const auto& wire : wires_) {
    if (!wire || !wire->sending()) continue;
    SF_TRY(until(*wire, Half::kSending, [&] { return wire->flush(); }));
  }
  return Outcome::kOk;
}

const Verdict* Waiter::verdict_within(Nanos limit) {
  const Nanos end = deadline_after(now_ns(), limit);
  for (Nanos now = now_ns(); abort_.verdict() == nullptr && now < end; now = now_ns()) {
    pollfd fd = {bell_.fd(), POLLIN, 0};
    const Nanos span = std::min(kSleepMax, end - now);
    if (poll(&fd, 1, static_cast<int>(span / kMillisecond) + 1) > 0) bell_.silence();
  }
  return abort_.verdict();
}

}  // namespace standfast
