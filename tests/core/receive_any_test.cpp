// Receives that take whatever rank sends first: none is lost, none is taken twice, none waits for
// ever, and whoever can't send any more is named.
#include <doctest/doctest.h>

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

Request from_any(std::vector<std::int32_t>* into, std::int32_t tag = 0) {
  Request made = request(Kind::kReceive, nullptr, into, into->size(), kAnyPeer);
  made.tag = tag;
  return made;
}

// Submitted, for only that tells from whom; and waited for.
Result received(Group& group, const Request& asked) {
  const auto pending = group.submit(asked);
  bool interrupted = false;
  REQUIRE(pending->wait(kPatience, nullptr, &interrupted));
  return pending->result();
}

Result send_one(Group& group, int to, std::int32_t value, std::int32_t tag = 0) {
  const std::vector<std::int32_t> out(kCount, value);
  Request made = request(Kind::kSend, &out, nullptr, kCount, to);
  made.tag = tag;
  return group.run(made, nullptr);
}

}  // namespace

// Between collectives and beside receives that name their source.
TEST_CASE("receive any: each message once, and from whom") {
  for (const FabricKind fabric : kFabrics) {
    CAPTURE(static_cast<int>(fabric));
    Team team({.size = kSize, .fabric = fabric});
    constexpr int kRounds = 20;
    Complaints complaints(kSize);
    std::vector<int> counts(kSize);
    team.each([&](int rank) {
      std::string& complaint = complaints[static_cast<std::size_t>(rank)];
      for (int round = 0; round < kRounds; ++round) {
        if (rank != 0) {
          for (const std::int32_t tag : {0, 7}) {
            if (send_one(team[rank], 0, rank, tag).failure) complaint = "a send failed";
          }
        } else {
          // The second has a tag of its own, so it can't come before the first of that rank.
          for (int message = 0; message < kSize - 1; ++message) {
            std::vector<std::int32_t> in(kCount);
            const Result result = received(team[0], from_any(&in));
            if (result.failure) complaint = text_of(*result.failure);
            if (in != std::vector<std::int32_t>(kCount, result.from)) complaint = "wrong data";
            ++counts[static_cast<std::size_t>(std::max(0, result.from))];
            Request named = request(Kind::kReceive, nullptr, &in, kCount, result.from);
            named.tag = 7;
            if (const Result second = team[0].run(named, nullptr); second.failure) {
              complaint = text_of(*second.failure);
            }
          }
        }
        AnyOperation barrier(1, 1);
        if (barrier.run(team[rank], Kind::kBarrier, 0).failure) complaint = "the barrier failed";
      }
    });
    check_none(complaints);
    CHECK(counts == std::vector<int>{0, kRounds, kRounds});
  }
}

// Where one rank always has something, the other's turn comes all the same.
TEST_CASE("receive any: in turn") {
  Team team({.size = kSize});
  team.each([&](int rank) {
    if (rank == 0) return;
    for (int i = 0; i < 3; ++i) CHECK_FALSE(send_one(team[rank], 0, rank).failure);
  });
  std::vector<int> order;
  for (int i = 0; i < 6; ++i) {
    std::vector<std::int32_t> in(kCount);
    order.push_back(received(team[0], from_any(&in)).from);
  }
  CHECK(order == std::vector<int>{1, 2, 1, 2, 1, 2});
}

TEST_CASE("receive any: a death") {
  for (const FabricKind fabric : kFabrics) {
    for (int victim = 0; victim < kSize; ++victim) {
      CAPTURE(static_cast<int>(fabric));
      CAPTURE(victim);
      Team team({.size = kSize, .fabric = fabric, .outsider = victim, .outside = [](Group&) {}});
      std::vector<Heard> heard(kSize);
      std::atomic<Nanos> died{0};
      std::atomic<int> running{0};
      team.each([&](int rank) {
        if (rank == victim) {
          (void)eventually([&] { return running == kSize - 1; });
          died = now_ns();
          return team.kill_outsider();
        }
        std::vector<std::int32_t> in(kCount);
        ++running;
        heard[static_cast<std::size_t>(rank)] =
            until_failure([&] { return team[rank].run(from_any(&in), nullptr); });
      });
      check_heard(heard, victim, {VerdictKind::kDied, VerdictKind::kLinkLost}, victim, died);
    }
  }
}

TEST_CASE("receive any: nobody sends") {
  for (const bool by_operation : {true, false}) {
    CAPTURE(by_operation);
    constexpr Nanos kLimit = 150 * kMillisecond;
    Team team({.size = kSize, .progress = by_operation ? kPatience : kLimit});
    std::vector<std::int32_t> in(kCount);
    Request asked = from_any(&in);
    if (by_operation) asked.timeout = kLimit;
    const Nanos start = now_ns();
    const Result result = team[0].run(asked, nullptr);
    CHECK(now_ns() - start >= kLimit);
    REQUIRE(result.failure);
    CHECK(result.failure->verdict.kind == VerdictKind::kNoProgress);
    const std::string& cause = result.failure->verdict.cause;
    INFO(cause);
    CHECK(cause.find("for any rank") != std::string::npos);
  }
}

// Who has closed its group sends nothing more; the others still may.
TEST_CASE("receive any: leavers") {
  Team team({.size = kSize});
  std::vector<std::int32_t> in(kCount);
  Threads threads;
  threads.start([&] { (void)team[1].close(Watch::Goodbye::kOrderly); });
  threads.start([&] {
    CHECK_FALSE(send_one(team[2], 0, 2).failure);
    (void)team[2].close(Watch::Goodbye::kOrderly);
  });
  CHECK(received(team[0], from_any(&in)).from == 2);
  const Result result = received(team[0], from_any(&in));
  REQUIRE(result.failure);
  CHECK(result.failure->verdict.kind == VerdictKind::kLeft);
  (void)team[0].close(Watch::Goodbye::kOrderly);
  threads.join();
}

// All others have sent something else: a wait for what can't come any more would not end.
TEST_CASE("receive any: a mismatch") {
  Team team({.size = kSize});
  for (const int rank : {1, 2}) CHECK_FALSE(send_one(team[rank], 0, rank, 7).failure);
  std::vector<std::int32_t> in(kCount);
  const Result result = team[0].run(from_any(&in), nullptr);
  REQUIRE(result.failure);
  CHECK(result.failure->verdict.kind == VerdictKind::kMessageMismatch);
}

}  // namespace standfast
