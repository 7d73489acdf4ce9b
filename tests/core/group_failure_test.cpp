// Whole groups in trouble: a death, a lost link, an abort, an exception, a limit, a disagreement or
// a fork, and what every rank gets to hear of it.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "core/group.h"
#include "tests/core/team.h"

namespace standfast {
namespace {

using test::AnyOperation;
using test::check_none;
using test::Complaints;
using test::eventually;
using test::request;
using test::Team;
using test::text_of;
using Kind = RequestKind;

constexpr int kSize = 3;
constexpr std::size_t kCount = 100;
constexpr std::size_t kMuch = 1 << 19;  // more than all buffers between two ranks hold
// The promise is one second. The machine is small, loaded, and runs sanitizers.
constexpr Nanos kPromised = 2 * kSecond;

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kAllGather,   Kind::kReduceScatter,
                           Kind::kBroadcast, Kind::kAllToAll,    Kind::kGather,
                           Kind::kScatter,   Kind::kGatherBytes, Kind::kBarrier};
constexpr FabricKind kFabrics[] = {FabricKind::kShm, FabricKind::kTcp};

struct Heard {
  bool is_failure = false;
  Failure failure;
  Nanos at = 0;
};

// Repeats an operation until it fails: the wait in which the fault finds the rank is any of them.
template <class Operate>
Heard until_failure(Operate operate) {
  Heard heard;
  (void)eventually([&] {
    Result result = operate();
    if (!result.failure) return false;
    heard = {true, std::move(*result.failure), now_ns()};
    return true;
  });
  return heard;
}

Heard barriers_until_failure(Group& group, Nanos timeout = kNever) {
  return until_failure([&] {
    Request barrier = request(Kind::kBarrier, nullptr, nullptr, 0);
    barrier.timeout = timeout;
    return group.run(barrier, nullptr);
  });
}

void check_heard(const std::vector<Heard>& heard, int but, std::vector<VerdictKind> kinds, int rank,
                 Nanos since) {
  const Heard* first = nullptr;
  for (int each = 0; each < static_cast<int>(heard.size()); ++each) {
    if (each == but) continue;
    CAPTURE(each);
    const Heard& one = heard[static_cast<std::size_t>(each)];
    REQUIRE(one.is_failure);
    INFO(text_of(one.failure));
    CHECK(std::count(kinds.begin(), kinds.end(), one.failure.verdict.kind) == 1);
    if (rank >= 0) CHECK(one.failure.verdict.rank == rank);
    CHECK(one.failure.verdict.detected_ns > 0);
    CHECK(one.at - since < kPromised);
    if (first == nullptr) first = &one;
    CHECK(one.failure.verdict.kind == first->failure.verdict.kind);
    CHECK(one.failure.verdict.rank == first->failure.verdict.rank);
  }
}

}  // namespace

// Whatever operation the others are in when a rank dies, each of them hears within the promised
// time who it was, and all hear the same.
TEST_CASE("group failure: a death in any collective") {
  for (const FabricKind fabric : kFabrics) {
    for (const Kind kind : kKinds) {
      for (int victim = 0; victim < kSize; ++victim) {
        CAPTURE(static_cast<int>(fabric));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(victim);
        // It dies between two operations or in the middle of one.
        const auto outside = [&](Group& group) {
          AnyOperation operation(kSize, kCount);
          while (!operation.run(group, kind, 0).failure) {
          }
        };
        Team team({.size = kSize, .fabric = fabric, .outsider = victim, .outside = outside});
        std::vector<Heard> heard(kSize);
        std::atomic<Nanos> died{0};
        std::atomic<int> done{0};
        team.each([&](int rank) {
          if (rank == victim) {
            (void)eventually([&] { return done >= kSize - 1; });
            died = now_ns();
            return team.kill_outsider();
          }
          AnyOperation operation(kSize, kCount);
          heard[static_cast<std::size_t>(rank)] = until_failure([&] {
            Result result = operation.run(team[rank], kind, 0);
            ++done;
            return result;
          });
        });
        check_heard(heard, victim, {VerdictKind::kDied, VerdictKind::kLinkLost}, victim, died);
      }
    }
  }
}

// A send that nobody takes and a recv that nobody feeds end with the peer that died.
TEST_CASE("group failure: a death in a message") {
  for (const FabricKind fabric : kFabrics) {
    for (const Kind kind : {Kind::kSend, Kind::kReceive, Kind::kReceiveBytes}) {
      for (int victim = 0; victim < kSize; ++victim) {
        CAPTURE(static_cast<int>(fabric));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(victim);
        Team team({.size = kSize,
                   .fabric = fabric,
                   .buffer_bytes = 16 * 1024,
                   .outsider = victim,
                   .outside = [](Group&) {}});
        std::vector<Heard> heard(kSize);
        std::atomic<Nanos> died{0};
        std::atomic<int> running{0};
        team.each([&](int rank) {
          if (rank == victim) {
            (void)eventually([&] { return running == kSize - 1; });
            died = now_ns();
            return team.kill_outsider();
          }
          AnyOperation operation(1, kMuch);
          ++running;
          heard[static_cast<std::size_t>(rank)] =
              until_failure([&] { return operation.run(team[rank], kind, victim); });
        });
        check_heard(heard, victim, {VerdictKind::kDied, VerdictKind::kLinkLost}, victim, died);
      }
    }
  }
}

// A death ends submitted operations too, running and waiting ones, sends and receives at once.
TEST_CASE("group failure: a death among submitted operations") {
  for (const FabricKind fabric : kFabrics) {
    CAPTURE(static_cast<int>(fabric));
    Team team({.size = kSize, .fabric = fabric, .buffer_bytes = 16 * 1024, .can_cut = true});
    constexpr int kVictim = 2;
    std::vector<std::int32_t> in(kMuch, 1);
    std::vector<std::shared_ptr<Group::Pending>> all;
    std::vector<std::vector<std::int32_t>> outs(6, in);
    for (const int rank : {0, 1}) {
      for (int i = 0; i < 3; ++i) {
        auto& out = outs[static_cast<std::size_t>(3 * rank + i)];
        all.push_back(team[rank].submit(request(Kind::kSend, &in, nullptr, in.size(), kVictim)));
        all.push_back(
            team[rank].submit(request(Kind::kReceive, nullptr, &out, in.size(), kVictim)));
      }
    }
    team.cut(kVictim);
    for (const auto& pending : all) {
      bool interrupted = false;
      REQUIRE(pending->wait(kPromised, nullptr, &interrupted));
      REQUIRE(pending->result().failure);
      CHECK(pending->result().failure->verdict.rank == kVictim);
    }
  }
}

// After the first failure every call returns the same first cause at once.
TEST_CASE("group failure: the first cause stays") {
  Team team({.size = kSize, .can_cut = true});
  team.cut(1);
  const Heard first = barriers_until_failure(team[0]);
  REQUIRE(first.is_failure);
  CHECK_FALSE(team[0].is_healthy());
  for (const Kind kind : kKinds) {
    AnyOperation operation(kSize, kCount);
    const Nanos start = now_ns();
    const Result result = operation.run(team[0], kind, 0);
    REQUIRE(result.failure);
    CHECK(result.failure->verdict.cause == first.failure.verdict.cause);
    CHECK(now_ns() - start < kPromised);
  }
  const auto pending = team[0].submit(request(Kind::kBarrier, nullptr, nullptr, 0));
  CHECK(pending->is_done());
  CHECK(pending->result().failure->verdict.rank == 1);
  REQUIRE(team[0].failure());
  CHECK(team[0].failure()->verdict.rank == 1);
  CHECK(std::string(team[0].close(Watch::Goodbye::kOrderly)) == "peer_fault");
}

// A broken data connection between two healthy ranks is a lost link for all, with its name.
TEST_CASE("group failure: a lost link") {
  for (const FabricKind fabric : kFabrics) {
    CAPTURE(static_cast<int>(fabric));
    Team team({.size = kSize, .fabric = fabric, .can_cut = true});
    std::vector<Heard> heard(kSize);
    std::atomic<Nanos> cut{0};
    team.each([&](int rank) {
      AnyOperation operation(kSize, kCount);
      if (rank == 1) {
        cut = now_ns();
        team.cut_wire(1, 2);
      }
      // Somebody has to need the link: shared memory works without its doorbell while all are
      // awake.
      heard[static_cast<std::size_t>(rank)] = until_failure([&] {
        return operation.run(team[rank], rank == 1 ? Kind::kReceive : Kind::kBarrier, 2);
      });
    });
    check_heard(heard, -1, {VerdictKind::kLinkLost}, -1, cut);
    const Verdict& verdict = heard[0].failure.verdict;
    CHECK((verdict.rank == 1 || verdict.rank == 2));
    CHECK(verdict.cause.find("data connection between rank") == 0);
  }
}

// An abort by any rank, in any operation, ends the waits of all ranks with its reason.
TEST_CASE("group failure: abort") {
  for (const FabricKind fabric : kFabrics) {
    for (int aborter = 0; aborter < kSize; ++aborter) {
      CAPTURE(aborter);
      Team team({.size = kSize, .fabric = fabric});
      std::vector<Heard> heard(kSize);
      std::atomic<Nanos> aborted{0};
      team.each([&](int rank) {
        if (rank == aborter) {
          aborted = now_ns();
          team[rank].abort("enough");
        }
        heard[static_cast<std::size_t>(rank)] = barriers_until_failure(team[rank]);
      });
      check_heard(heard, -1, {VerdictKind::kAborted}, aborter, aborted);
      CHECK(heard[0].failure.verdict.cause == "enough");
      CHECK(std::string(team[0].close(Watch::Goodbye::kOrderly)) == "failed");
    }
  }
}

// A rank whose program raised tells all others what it raised, and closes with that.
TEST_CASE("group failure: an exception") {
  for (int culprit = 0; culprit < kSize; ++culprit) {
    CAPTURE(culprit);
    Team team({.size = kSize});
    std::vector<Heard> heard(kSize);
    std::atomic<Nanos> raised{0};
    team.each([&](int rank) {
      if (rank != culprit) {
        heard[static_cast<std::size_t>(rank)] = barriers_until_failure(team[rank]);
        return;
      }
      raised = now_ns();
      team[rank].fail("ValueError", "no", "Traceback\n  here");
      (void)team[rank].close(Watch::Goodbye::kNone);
    });
    check_heard(heard, culprit, {VerdictKind::kFailed}, culprit, raised);
    const Verdict& verdict = heard[culprit == 0 ? 1 : 0].failure.verdict;
    CHECK(verdict.cause == "ValueError: no");
    CHECK(verdict.remote_type == "ValueError");
    CHECK(verdict.remote_message == "no");
    CHECK(verdict.remote_traceback == "Traceback\n  here");
  }
}

// An operation's time limit, and the group's limit for one wait, end the group on all ranks.
TEST_CASE("group failure: no progress") {
  for (const bool by_operation : {true, false}) {
    for (int missing = 0; missing < kSize; ++missing) {
      CAPTURE(by_operation);
      CAPTURE(missing);
      constexpr Nanos kLimit = 150 * kMillisecond;
      Team team({.size = kSize, .progress = by_operation ? test::kPatience : kLimit});
      std::vector<Heard> heard(kSize);
      const Nanos start = now_ns();
      team.each([&](int rank) {
        if (rank == missing) {
          (void)eventually([&] { return !team[rank].is_healthy(); });
        }
        heard[static_cast<std::size_t>(rank)] =
            barriers_until_failure(team[rank], by_operation ? kLimit : kNever);
      });
      check_heard(heard, -1, {VerdictKind::kNoProgress}, -1, start + kLimit);
      CHECK(heard[0].at - start >= kLimit);
    }
  }
}

// An operation that waits for its turn longer than its limit ends the group as well.
TEST_CASE("group failure: no progress in the queue") {
  Team team({.size = 2});
  const auto first = team[0].submit(request(Kind::kBarrier, nullptr, nullptr, 0));
  Request second = request(Kind::kBarrier, nullptr, nullptr, 0);
  second.timeout = 100 * kMillisecond;
  const Result result = team[0].run(second, nullptr);
  REQUIRE(result.failure);
  CHECK(result.failure->verdict.kind == VerdictKind::kNoProgress);
  bool interrupted = false;
  REQUIRE(first->wait(kPromised, nullptr, &interrupted));
  CHECK(first->result().failure->verdict.kind == VerdictKind::kNoProgress);
  CHECK(barriers_until_failure(team[1]).failure.verdict.kind == VerdictKind::kNoProgress);
}

// Ranks in different operations, of different size, type or root, all hear of the disagreement.
TEST_CASE("group failure: mismatch") {
  struct Odd {
    const char* what;
    void (*change)(Request&);
  };
  const Odd odds[] = {
      {"another count", [](Request& asked) { asked.count = kCount - 1; }},
      {"another type", [](Request& asked) { asked.dtype = DType::kFloat32; }},
      {"another reduction", [](Request& asked) { asked.op = ReduceOp::kMax; }},
      {"another operation", [](Request& asked) { asked.kind = Kind::kAllGather; }},
      {"a barrier", [](Request& asked) { asked.kind = Kind::kBarrier; }},
      {"a message", [](Request& asked) { asked.kind = Kind::kReceiveBytes; }},
  };
  for (const FabricKind fabric : kFabrics) {
    for (const Odd& odd : odds) {
      const std::string what = odd.what;
      CAPTURE(what);
      Team team({.size = kSize, .fabric = fabric});
      std::vector<Heard> heard(kSize);
      const Nanos start = now_ns();
      team.each([&](int rank) {
        std::vector<std::int32_t> in(kCount, rank);
        std::vector<std::int32_t> out(kSize * kCount);
        Request asked = request(Kind::kAllReduce, &in, &out, kCount);
        if (rank == 1) odd.change(asked);
        heard[static_cast<std::size_t>(rank)] =
            until_failure([&] { return team[rank].run(asked, nullptr); });
      });
      check_heard(heard, -1, {VerdictKind::kMismatch}, -1, start);
      CHECK(heard[0].failure.verdict.cause.find("all_sum int32[100]") != std::string::npos);
    }
  }
}

// A message with another tag, type or size than was expected is refused on both sides.
TEST_CASE("group failure: message mismatch") {
  for (int odd = 0; odd < 3; ++odd) {
    CAPTURE(odd);
    Team team({.size = 2});
    std::vector<Heard> heard(2);
    const Nanos start = now_ns();
    team.each([&](int rank) {
      std::vector<std::int32_t> memory(kCount, rank);
      Request asked =
          request(rank == 0 ? Kind::kSend : Kind::kReceive, &memory, &memory, kCount, 1 - rank);
      if (rank == 0 && odd == 0) asked.tag = 7;
      if (rank == 0 && odd == 1) asked.dtype = DType::kFloat32;
      if (rank == 0 && odd == 2) asked.count = kCount - 1;
      heard[static_cast<std::size_t>(rank)] =
          until_failure([&] { return team[rank].run(asked, nullptr); });
    });
    check_heard(heard, -1, {VerdictKind::kMessageMismatch}, 0, start);
  }
}

namespace {

std::atomic<bool> wants_interrupt{false};
bool asks_for_interrupt() { return wants_interrupt; }

}  // namespace

// An interrupted operation comes back as that, the group is over for its rank from that moment on,
// and the others hear that it left.
TEST_CASE("group failure: interrupted") {
  for (int culprit = 0; culprit < kSize; ++culprit) {
    CAPTURE(culprit);
    Team team({.size = kSize});
    std::vector<Heard> heard(kSize);
    std::atomic<Nanos> interrupted{0};
    Complaints complaints(kSize);
    wants_interrupt = true;
    team.each([&](int rank) {
      if (rank != culprit) {
        heard[static_cast<std::size_t>(rank)] = barriers_until_failure(team[rank]);
        return;
      }
      std::string& complaint = complaints[static_cast<std::size_t>(rank)];
      AnyOperation operation(kSize, kCount);
      Result result;
      for (int i = 0; i < 1000 && !result.failure; ++i) {
        result = team[rank].run(request(Kind::kReceive, nullptr, nullptr, 0, (rank + 1) % kSize),
                                asks_for_interrupt);
      }
      interrupted = now_ns();
      if (!result.failure || !result.failure->interrupted) complaint = "not interrupted";
      if (!operation.run(team[rank], Kind::kAllReduce, 0).failure) complaint = "goes on";
      (void)team[rank].close(Watch::Goodbye::kInterrupted);
    });
    check_none(complaints);
    check_heard(heard, culprit, {VerdictKind::kLeft}, culprit, interrupted);
    CHECK(heard[culprit == 0 ? 1 : 0].failure.verdict.cause == "interrupted");
  }
}

// Even where the coordinator can't answer, an interrupted operation was the last: what it left
// half-sent lies in memory that is its caller's again.
TEST_CASE("group failure: interrupted, and no answer") {
  const auto stop = [](Group&) { raise(SIGSTOP); };
  Team team({.size = 2,
             .fabric = FabricKind::kTcp,
             .buffer_bytes = 16 * 1024,
             .outsider = 0,
             .outside = stop});
  wants_interrupt = true;
  std::vector<std::int32_t> memory(kMuch, 1);
  const Request asked = request(Kind::kAllReduce, &memory, &memory, kMuch);
  const Result first = team[1].run(asked, asks_for_interrupt);
  REQUIRE(first.failure);
  CHECK(first.failure->interrupted);
  const Result second = team[1].run(asked, nullptr);
  REQUIRE(second.failure);
  CHECK(second.failure->op == "");  // it did not begin
  CHECK(second.failure->verdict.kind == VerdictKind::kLeft);
  CHECK(second.failure->verdict.rank == 1);
}

// A rank that leaves while others still need it has left, for all, at once: also where what they
// send it fills every buffer, and though its process lives on.
TEST_CASE("group failure: a leaver who is needed") {
  for (const FabricKind fabric : kFabrics) {
    for (const Kind kind : {Kind::kSend, Kind::kReceive, Kind::kBroadcast, Kind::kAllReduce}) {
      for (int leaver = 0; leaver < kSize; ++leaver) {
        CAPTURE(static_cast<int>(fabric));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(leaver);
        Team team({.size = kSize, .fabric = fabric, .buffer_bytes = 16 * 1024});
        std::vector<Heard> heard(kSize);
        std::atomic<Nanos> left{0};
        std::atomic<int> running{0};
        const int other = (leaver + 1) % kSize;
        team.each([&](int rank) {
          if (rank == leaver) {
            (void)eventually([&] { return running == kSize - 1; });
            left = now_ns();
            (void)team[rank].close(Watch::Goodbye::kOrderly);
            return;
          }
          ++running;
          AnyOperation operation(1, kMuch);
          const bool is_message = kind == Kind::kSend || kind == Kind::kReceive;
          // The other one needs the leaver; of messages, the third rank needs the other one.
          const int partner = rank == other ? (is_message ? leaver : rank) : other;
          heard[static_cast<std::size_t>(rank)] = until_failure([&] {
            return operation.run(team[rank], rank == other || !is_message ? kind : Kind::kReceive,
                                 partner);
          });
        });
        check_heard(heard, leaver, {VerdictKind::kLeft}, leaver, left);
      }
    }
  }
}

// A forked child can use nothing of the group, and closing it there closes nothing of the parent's.
TEST_CASE("group failure: a forked child") {
  for (const FabricKind fabric : kFabrics) {
    Team team({.size = 2, .fabric = fabric});
    auto group = std::unique_ptr<Group>(&team[0]);
    const pid_t child = test::fork_process();
    if (child == 0) {
      AnyOperation operation(2, kCount);
      const Result result = operation.run(*group, Kind::kAllReduce, 0);
      const bool refuses = result.failure && result.failure->verdict.kind == VerdictKind::kClosed &&
                           result.failure->verdict.cause.find("forked child") != std::string::npos;
      const auto pending = group->submit(request(Kind::kBarrier, nullptr, nullptr, 0));
      const bool is_healthy = group->is_healthy();
      group->taken();
      group->abort("not mine");
      group->fail("E", "not mine", "");
      (void)group->close(Watch::Goodbye::kOrderly);
      Group::dispose(std::move(group));
      _exit(refuses && pending && pending->is_done() && !is_healthy ? 0 : 1);
    }
    (void)group.release();
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    std::atomic<int> failures{0};
    team.each([&](int rank) {
      AnyOperation operation(2, kCount);
      for (const Kind kind : kKinds) {
        if (operation.run(team[rank], kind, 0).failure) ++failures;
      }
    });
    CHECK(failures == 0);
    CHECK(team[0].is_healthy());
  }
}

// A fork may come at any moment, also while another thread makes or ends a group: the child lives.
TEST_CASE("group failure: forks while groups come and go") {
  std::atomic<bool> is_enough{false};
  test::Threads threads;
  threads.start([&] {
    while (!is_enough) {
      Team team({.size = 2, .linger = 0});
      team.each([&](int rank) {
        AnyOperation own(2, kCount);
        (void)own.run(team[rank], Kind::kAllReduce, 0);
      });
    }
  });
  int failures = 0;
  for (int i = 0; i < 100; ++i) {
    const pid_t child = test::fork_process();
    if (child == 0) _exit(0);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) ++failures;
  }
  is_enough = true;
  threads.join();
  CHECK(failures == 0);
}

// A child that lives on holds none of the parent's sockets: the parent's death is still seen.
TEST_CASE("group failure: a forked child hides no death") {
  auto [here, there] = test::socket_pair();
  auto [wire_here, wire_there] = test::socket_pair();
  int pids[2];
  REQUIRE(pipe(pids) == 0);
  const pid_t parent = test::fork_process();
  if (parent == 0) {
    here.reset();
    wire_here.reset();
    GroupConfig config;
    config.shape = {1, 2, 5};
    config.control.emplace_back(0, std::move(there));
    config.wires.push_back({0, FabricKind::kTcp, std::move(wire_there), Fd(), false, "tcp"});
    Group group(std::move(config));
    const pid_t child = test::fork_process();
    if (child == 0) {
      for (;;) pause();
    }
    _exit(write(pids[1], &child, sizeof child) == sizeof child ? 0 : 1);
  }
  there.reset();
  wire_there.reset();
  pid_t child = 0;
  REQUIRE(read(pids[0], &child, sizeof child) == sizeof child);
  REQUIRE(waitpid(parent, nullptr, 0) == parent);
  const Fd* const ends[] = {&here, &wire_here};
  for (const Fd* end : ends) {
    CHECK(eventually([&] {
      char byte = 0;
      const Transfer transfer = receive_some(end->get(), &byte, 1);
      return transfer.kind == Transfer::Kind::kEnd || transfer.kind == Transfer::Kind::kError;
    }));
  }
  kill(child, SIGKILL);
  ::close(pids[0]);
  ::close(pids[1]);
}

}  // namespace standfast
