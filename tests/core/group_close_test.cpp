// Groups that end in good order: whoever leaves first, nobody gets an error for what all completed.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
using Goodbye = Watch::Goodbye;
using Kind = RequestKind;

constexpr int kSize = 3;
constexpr FabricKind kFabrics[] = {FabricKind::kShm, FabricKind::kTcp};
constexpr std::array<int, kSize> kOrders[] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                              {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

// Stand for the ranks' processes, which end when their rank has closed.
class Processes {
 public:
  Processes() {
    for (int& pid : pids_) {
      pid = test::fork_process();
      if (pid != 0) continue;
      for (;;) pause();
    }
  }
  ~Processes() {
    for (int rank = 0; rank < kSize; ++rank) end(rank);
  }
  std::vector<int> pids() const { return {pids_.begin(), pids_.end()}; }
  void end(int rank) {
    int& pid = pids_[static_cast<std::size_t>(rank)];
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }

 private:
  std::array<int, kSize> pids_{};
};

void work(Group& group, int rank, int peer, bool is_low, std::string& complaint) {
  std::vector<std::int32_t> memory(20'000);
  for (int i = 0; i < 10 && complaint.empty(); ++i) {
    for (const bool sends : {is_low, !is_low}) {
      std::fill(memory.begin(), memory.end(), sends ? rank : -1);
      const Kind kind = sends ? Kind::kSend : Kind::kReceive;
      const Result result =
          group.run(request(kind, &memory, &memory, memory.size(), peer), nullptr);
      if (result.failure) complaint = text_of(*result.failure);
      if (!sends && memory != std::vector<std::int32_t>(memory.size(), peer)) complaint = "wrong";
    }
  }
}

// Three ranks that close in some order, each as soon as it is done; the others work on meanwhile.
void close_in_order(const std::array<int, kSize>& order, FabricKind fabric, Nanos linger) {
  Processes processes;
  Team team({.size = kSize, .fabric = fabric, .linger = linger, .pids = processes.pids()});
  Complaints complaints(kSize);
  std::atomic<bool> is_closing[kSize] = {};
  std::atomic<bool> is_closed[kSize] = {};
  const auto close = [&](int rank) {
    is_closing[rank] = true;
    const std::string how = team[rank].close(Goodbye::kOrderly);
    std::string& complaint = complaints[static_cast<std::size_t>(rank)];
    if (how != "orderly" && complaint.empty()) complaint = "closed as " + how;
    if (linger == 0) team.destroy(rank);
    processes.end(rank);
    is_closed[rank] = true;
  };
  // Rank 0 may stay until the others have left, too.
  const auto has_left = [&](int rank) {
    return eventually(
        [&] { return (rank == 0 && linger > 0 ? is_closing[0] : is_closed[rank]).load(); });
  };
  const auto [first, second, third] = order;
  team.each([&, first = first, second = second, third = third](int rank) {
    std::string& complaint = complaints[static_cast<std::size_t>(rank)];
    Group& group = team[rank];
    AnyOperation operation(kSize, 1000);
    for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kBarrier}) {
      const Result result = operation.run(group, kind, 0);
      if (result.failure) complaint = text_of(*result.failure);
    }
    if (rank == first) return close(rank);
    (void)has_left(first);
    const int peer = rank == second ? third : second;
    work(group, rank, peer, rank < peer, complaint);
    std::vector<std::int32_t> last(100, 7);
    if (rank == second) {  // its last message is on its way when it leaves
      const Result sent = group.run(request(Kind::kSend, &last, nullptr, 100, peer), nullptr);
      if (sent.failure) complaint = text_of(*sent.failure);
      return close(rank);
    }
    (void)has_left(second);
    std::fill(last.begin(), last.end(), 0);
    const Result got = group.run(request(Kind::kReceive, nullptr, &last, 100, peer), nullptr);
    if (got.failure) complaint = text_of(*got.failure);
    if (last != std::vector<std::int32_t>(100, 7)) complaint = "the last message is wrong";
    close(rank);
  });
  check_none(complaints);
}

}  // namespace

// Nobody gets a failure for an operation that everybody completed, in whatever order the ranks
// close and their processes end, and however long rank 0 stays.
TEST_CASE("group close: any order") {
  for (const FabricKind fabric : kFabrics) {
    for (const Nanos linger : {Nanos{0}, 20 * kSecond}) {
      for (const auto& order : kOrders) {
        INFO("fabric ", static_cast<int>(fabric), ", linger ", linger, ", order ", order[0], " ",
             order[1], " ", order[2]);
        close_in_order(order, fabric, linger);
      }
    }
  }
}

// Ranks that all close right after the last collective, as most programs do, close in good order.
TEST_CASE("group close: all at once") {
  for (const FabricKind fabric : kFabrics) {
    for (int run = 0; run < 20; ++run) {
      Team team({.size = 4, .fabric = fabric});
      Complaints complaints(4);
      team.each([&](int rank) {
        std::string& complaint = complaints[static_cast<std::size_t>(rank)];
        AnyOperation operation(4, 100);
        const Result result = operation.run(team[rank], Kind::kAllReduce, 0);
        if (result.failure) complaint = text_of(*result.failure);
        const std::string how = team[rank].close(Goodbye::kOrderly);
        if (how != "orderly") complaint = "closed as " + how;
      });
      check_none(complaints);
    }
  }
}

// A closed group refuses everything at once and says that it was closed; closing again is nothing.
TEST_CASE("group close: afterwards") {
  Team team({.size = 2, .linger = 0});
  CHECK(std::string(team[0].close(Goodbye::kOrderly)) == "orderly");
  CHECK(std::string(team[0].close(Goodbye::kOrderly)) == "orderly");
  CHECK_FALSE(team[0].is_healthy());
  CHECK_FALSE(team[0].failure());
  AnyOperation operation(2, 10);
  const Result result = operation.run(team[0], Kind::kAllReduce, 0);
  REQUIRE(result.failure);
  CHECK(result.failure->verdict.kind == VerdictKind::kClosed);
  const auto pending = team[0].submit(request(Kind::kBarrier, nullptr, nullptr, 0));
  REQUIRE(pending);
  CHECK(pending->result().failure->verdict.kind == VerdictKind::kClosed);
  team[0].abort("too late");
  team[0].fail("E", "too late", "");
  team[0].taken();
}

namespace {

std::atomic<bool> is_waiting{false};
bool tells_that_it_waits() {
  is_waiting = true;
  return false;
}

}  // namespace

// Closing while another thread waits in an operation ends that wait within a bounded time, here and
// on the peers.
TEST_CASE("group close: under an operation") {
  for (int closer = 0; closer < 2; ++closer) {
    CAPTURE(closer);
    Team team({.size = 2, .fabric = kFabrics[closer]});
    const Nanos start = now_ns();
    std::vector<std::int32_t> memory(10);
    const Request asked = request(Kind::kReceive, nullptr, &memory, 10, 1 - closer);
    is_waiting = false;
    Result stuck;
    test::Threads threads;
    threads.start([&] { stuck = team[closer].run(asked, tells_that_it_waits); });
    REQUIRE(eventually([&] { return is_waiting.load(); }));
    CHECK(std::string(team[closer].close(Goodbye::kOrderly)) == "failed");
    threads.join();
    REQUIRE(stuck.failure);
    CHECK(stuck.failure->verdict.kind == VerdictKind::kAborted);
    CHECK(now_ns() - start < 10 * kSecond);
    AnyOperation operation(2, 10);
    const Result result = operation.run(team[1 - closer], Kind::kAllReduce, 0);
    REQUIRE(result.failure);
    CHECK(result.failure->verdict.kind == VerdictKind::kAborted);
    CHECK(result.failure->verdict.rank == closer);
  }
}

// A group that is only destroyed says goodbye, too: its peers are not told that it died.
TEST_CASE("group close: by destruction") {
  Team team({.size = 2});
  team.destroy(1);
  AnyOperation operation(2, 10);
  const Result result = operation.run(team[0], Kind::kReceive, 1);
  REQUIRE(result.failure);
  CHECK(result.failure->verdict.kind == VerdictKind::kLeft);
}

// Groups come and go without leaving a descriptor open.
TEST_CASE("group close: leaves nothing behind") {
  const auto next_fd = [] {
    const Fd probe = Fd(dup(STDIN_FILENO));
    return probe.get();
  };
  const int before = next_fd();
  for (int run = 0; run < 3; ++run) {
    Team team({.size = 3, .fabric = kFabrics[run % 2]});
    CHECK(next_fd() > before);
  }
  CHECK(next_fd() == before);
}

}  // namespace standfast
