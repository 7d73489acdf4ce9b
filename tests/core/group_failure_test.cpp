// Whole groups that fail though all live: an abort, an exception, a limit, a disagreement, an
// interruption, a leaver; and what every rank gets to hear of it.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "core/group.h"
#include "tests/core/troubles.h"

namespace standfast {
namespace {

using namespace test;
using Kind = RequestKind;

}  // namespace

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

// An operation's time limit ends the group on all ranks; so does the group's limit for one wait,
// which names the rank that did not come.
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
      const auto kind = by_operation ? VerdictKind::kNoProgress : VerdictKind::kStalled;
      check_heard(heard, -1, {kind}, by_operation ? -1 : missing, start + kLimit);
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

// One rank in a barrier, the others in a sum: all hear who is in what, however many they are.
TEST_CASE("group failure: a barrier is no sum, among two, four and eight ranks") {
  for (const int size : {2, 4, 8}) {
    CAPTURE(size);
    Team team({.size = size});
    std::vector<Heard> heard(static_cast<std::size_t>(size));
    const Nanos start = now_ns();
    team.each([&](int rank) {
      AnyOperation operation(size, kCount);
      const Kind kind = rank == 1 ? Kind::kBarrier : Kind::kAllReduce;
      heard[static_cast<std::size_t>(rank)] =
          until_failure([&] { return operation.run(team[rank], kind, 0); });
    });
    check_heard(heard, -1, {VerdictKind::kMismatch}, -1, start);
    const std::string& cause = heard[0].failure.verdict.cause;
    // As one rank saw it, or as the coordinator puts it together.
    const bool is_named = cause.find("rank 1 is in barrier #1") != std::string::npos ||
                          cause.find("rank 1 in barrier #1") != std::string::npos;
    CHECK(is_named);
    CHECK(cause.find("in all_sum int32[100] #1") != std::string::npos);
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
      AnyOperation operation(kSize, kCount);
      if (rank != culprit) {
        heard[static_cast<std::size_t>(rank)] =
            until_failure([&] { return operation.run(team[rank], Kind::kReceive, culprit); });
        return;
      }
      std::string& complaint = complaints[static_cast<std::size_t>(rank)];
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

// A collective that somebody who left would have to take part in ends for all, also for those who
// exchange nothing with the leaver.
TEST_CASE("group failure: a collective without a leaver") {
  for (const Topology topology : {Topology::kMesh, Topology::kRing}) {
    for (const Kind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      constexpr int kAll = 5;
      constexpr int kLeaver = 2;
      Team team({.size = kAll, .topology = topology});
      std::vector<Heard> heard(kAll);
      std::atomic<Nanos> left{0};
      team.each([&](int rank) {
        AnyOperation operation(kAll, kCount);
        // Who is the last to end this one may find the group at its end already.
        Result first = operation.run(team[rank], Kind::kAllReduce, 0);
        if (first.failure) {
          heard[static_cast<std::size_t>(rank)] = {true, std::move(*first.failure), now_ns()};
          return;
        }
        if (rank == kLeaver) {
          left = now_ns();
          (void)team[rank].close(Watch::Goodbye::kOrderly);
          return;
        }
        heard[static_cast<std::size_t>(rank)] =
            until_failure([&] { return operation.run(team[rank], kind, 0); });
      });
      check_heard(heard, kLeaver, {VerdictKind::kLeft}, kLeaver, left);
    }
  }
}

}  // namespace standfast
