// Whole groups of which a rank or a link dies, or whose process forks: every other rank hears whose
// death it was, soon, and nobody else's.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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

// Whatever operation the others are in when a rank dies, each of them hears within the promised
// time who it was, and all hear the same.
TEST_CASE("group death: a death in any collective") {
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

// A barrier in one round waits for everybody, so everybody in it sees who is gone.
TEST_CASE("group death: a death in a barrier of two, four and eight ranks") {
  for (const int size : {2, 4, 8}) {
    for (const int victim : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(victim);
      const auto outside = [](Group& group) { (void)barriers_until_failure(group); };
      Team team({.size = size, .outsider = victim, .outside = outside});
      std::vector<Heard> heard(static_cast<std::size_t>(size));
      std::atomic<Nanos> died{0};
      std::atomic<int> done{0};
      team.each([&](int rank) {
        if (rank == victim) {
          (void)eventually([&] { return done >= size - 1; });
          died = now_ns();
          return team.kill_outsider();
        }
        const Request barrier = request(Kind::kBarrier, nullptr, nullptr, 0);
        heard[static_cast<std::size_t>(rank)] = until_failure([&] {
          Result result = team[rank].run(barrier, nullptr);
          ++done;
          return result;
        });
      });
      check_heard(heard, victim, {VerdictKind::kDied, VerdictKind::kLinkLost}, victim, died);
    }
  }
}

// A send that nobody takes and a recv that nobody feeds end with the peer that died.
TEST_CASE("group death: a death in a message") {
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
TEST_CASE("group death: a death among submitted operations") {
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
TEST_CASE("group death: the first cause stays") {
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
TEST_CASE("group death: a lost link") {
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
        return operation.run(team[rank], rank == 0 ? Kind::kBarrier : Kind::kReceive, 3 - rank);
      });
    });
    check_heard(heard, -1, {VerdictKind::kLinkLost}, -1, cut);
    const Verdict& verdict = heard[0].failure.verdict;
    CHECK((verdict.rank == 1 || verdict.rank == 2));
    CHECK(verdict.cause.find("data connection between rank") == 0);
  }
}

// A forked child can use nothing of the group, and closing it there closes nothing of the parent's.
TEST_CASE("group death: a forked child") {
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
TEST_CASE("group death: forks while groups come and go") {
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
TEST_CASE("group death: a forked child hides no death") {
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
