// Waits for what wakes nobody: what ends them, and how soon.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "core/wait/wait.h"
#include "tests/core/support.h"

namespace standfast {
namespace {

struct Rig {
  AbortWord abort;
  Bell bell;
  Bell neighbour;
  std::vector<std::unique_ptr<Wire>> wires;
  Waiter waiter{abort, bell, neighbour, true, spin_budget(2, usable_cores()), wires};
};

Polled idle(int peer) { return {Turn::kNotYet, peer, false}; }

TEST_CASE("polled wait: done at once, and after a while") {
  Rig rig;
  rig.waiter.begin({});
  int turns = 0;
  CHECK(rig.waiter.poll_until(
            [&](Nanos) { return ++turns < 5000 ? idle(1) : Polled{Turn::kDone}; }) == Outcome::kOk);
  CHECK(turns == 5000);
}

TEST_CASE("polled wait: a fault names whose it is") {
  Rig rig;
  rig.waiter.begin({});
  CHECK(rig.waiter.poll_until([](Nanos) { return Polled{Turn::kBroken, 3, false}; }) ==
        Outcome::kBroken);
  CHECK(rig.waiter.fault_peer() == 3);
  rig.waiter.begin({});
  CHECK(rig.waiter.poll_until([](Nanos) { return Polled{Turn::kMismatch, 2, false}; }) ==
        Outcome::kMismatch);
  CHECK(rig.waiter.fault_peer() == 2);
}

TEST_CASE("polled wait: patience begins anew whenever something moves") {
  Rig rig;
  Limits limits;
  limits.patience = 400 * kMillisecond;
  rig.waiter.begin(limits);
  const Nanos start = now_ns();
  Nanos moved_at = start;
  int moved = 0;
  const Outcome outcome = rig.waiter.poll_until([&](Nanos) {
    const Nanos now = now_ns();
    const bool moves = moved < 10 && now - moved_at > 50 * kMillisecond;
    if (moves) {
      moved_at = now;
      ++moved;
    }
    return Polled{Turn::kNotYet, 1, moves};
  });
  CHECK(outcome == Outcome::kTimeout);
  CHECK(rig.waiter.waiting_for() == 1);
  CHECK(moved == 10);
  CHECK(now_ns() - start > 900 * kMillisecond);
}

TEST_CASE("polled wait: time in which this process did not run is not the peers' fault") {
  Rig rig;
  Limits limits;
  limits.patience = 1200 * kMillisecond;
  rig.waiter.begin(limits);
  const Nanos start = now_ns();
  bool has_slept = false;
  Nanos quiet_after = 0;
  const Outcome outcome = rig.waiter.poll_until([&](Nanos quiet) {
    if (!has_slept && quiet > 10 * kMillisecond) {
      has_slept = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // as if stopped
    } else if (has_slept && quiet_after == 0) {
      quiet_after = quiet;
    }
    return idle(1);
  });
  CHECK(outcome == Outcome::kTimeout);
  CHECK(quiet_after < 1000 * kMillisecond);
  CHECK(now_ns() - start > 2000 * kMillisecond);
}

TEST_CASE("polled wait: the deadline holds") {
  Rig rig;
  Limits limits;
  limits.deadline = now_ns() + 100 * kMillisecond;
  rig.waiter.begin(limits);
  CHECK(rig.waiter.poll_until([](Nanos) { return idle(1); }) == Outcome::kTimeout);
}

TEST_CASE("polled wait: who is gone ends it, after what may still be on its way") {
  Rig rig;
  Limits limits;
  limits.gone = [] { return 2; };
  rig.waiter.begin(limits);
  const Nanos start = now_ns();
  CHECK(rig.waiter.poll_until([](Nanos) { return idle(1); }) == Outcome::kLeft);
  CHECK(rig.waiter.fault_peer() == 2);
  CHECK(now_ns() - start > 90 * kMillisecond);
}

TEST_CASE("polled wait: a verdict and a signal end it, also while all moves") {
  for (const bool moves : {false, true}) {
    Rig rig;
    Verdict verdict;
    verdict.kind = VerdictKind::kDied;
    rig.abort.raise(verdict);
    rig.waiter.begin({});
    CHECK(rig.waiter.poll_until([&](Nanos) { return Polled{Turn::kNotYet, 1, moves}; }) ==
          Outcome::kVerdict);
    Rig other;
    Limits limits;
    limits.interrupted = [] { return true; };
    other.waiter.begin(limits);
    CHECK(other.waiter.poll_until([&](Nanos) { return Polled{Turn::kNotYet, 1, moves}; }) ==
          Outcome::kInterrupted);
  }
}

}  // namespace
}  // namespace standfast
