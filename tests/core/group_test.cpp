// Whole groups at work: every operation against plain results, over both fabrics and topologies.
#include "core/group.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "tests/core/team.h"

namespace standfast {
namespace {

using test::bytes_of;
using test::check_none;
using test::Complaints;
using test::request;
using test::Team;
using test::TeamOptions;
using test::text_of;
using Kind = RequestKind;
using Values = std::vector<std::int32_t>;

// Tells whose it is and where it stands. Sums of them differ for every set of ranks.
std::int32_t value(int rank, std::size_t i) {
  const auto mixed =
      (static_cast<std::uint32_t>(rank) + 1) * 1'000'003u + 31 * static_cast<std::uint32_t>(i);
  return static_cast<std::int32_t>(mixed);
}

Values values(int rank, std::size_t count, std::size_t first = 0) {
  Values made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = value(rank, first + i);
  return made;
}

std::int32_t sum(int size, std::size_t i) {
  std::uint32_t all = 0;
  for (int rank = 0; rank < size; ++rank) all += static_cast<std::uint32_t>(value(rank, i));
  return static_cast<std::int32_t>(all);
}

// One rank's part in every operation; the first thing that goes wrong is its complaint.
class Player {
 public:
  Player(Group& group, int rank, int size, std::string& complaint)
      : group_(group), rank_(rank), size_(size), complaint_(complaint) {}

  void play(std::size_t count) {
    all_reduce(count, false);
    all_reduce(count, true);
    all_gather(count);
    reduce_scatter(count);
    all_to_all(count);
    for (int root = 0; root < size_; ++root) {
      if (count != kEveryRoot && root != static_cast<int>(count) % size_) continue;
      broadcast(count, root);
      gather(count, root);
      gather_bytes(count, root);
      scatter(count, root, true);
      scatter(count, root, false);
    }
    messages(count);
    run(request(Kind::kBarrier, nullptr, nullptr, 0));
  }

 private:
  static constexpr std::size_t kGuards = 4;
  static constexpr std::size_t kEveryRoot = 3;  // the count at which every root has its turn

  std::size_t blocks(std::size_t count) const { return static_cast<std::size_t>(size_) * count; }

  Result run(const Request& asked) {
    Result result = group_.run(asked, nullptr);
    if (result.failure) complain(text_of(*result.failure));
    return result;
  }
  void complain(const std::string& text) {
    if (complaint_.empty()) complaint_ = "rank " + std::to_string(rank_) + ": " + text;
  }
  // Results have guards behind them: -1, which no value is.
  static Values with_guards(std::size_t count) { return Values(count + kGuards, -1); }
  template <class Expected>
  void check(const char* what, const Values& got, std::size_t count, Expected expected) {
    for (std::size_t i = 0; i < count; ++i) {
      if (got[i] == expected(i)) continue;
      return complain(std::string(what) + " of " + std::to_string(count) + " is wrong at " +
                      std::to_string(i));
    }
    for (std::size_t i = count; i < got.size(); ++i) {
      if (got[i] != -1) return complain(std::string(what) + " wrote beyond its end");
    }
  }

  void all_reduce(std::size_t count, bool in_place) {
    Values in = values(rank_, count);
    in.insert(in.end(), kGuards, -1);
    Values out = with_guards(count);
    run(request(Kind::kAllReduce, &in, in_place ? &in : &out, count));
    check("all_reduce", in_place ? in : out, count, [&](std::size_t i) { return sum(size_, i); });
  }

  void all_gather(std::size_t count) {
    const Values in = values(rank_, count);
    Values out = with_guards(blocks(count));
    run(request(Kind::kAllGather, &in, &out, count));
    check("all_gather", out, blocks(count),
          [&](std::size_t i) { return value(static_cast<int>(i / count), i % count); });
  }

  void reduce_scatter(std::size_t count) {
    const Values in = values(rank_, blocks(count));
    Values out = with_guards(count);
    run(request(Kind::kReduceScatter, &in, &out, count));
    const std::size_t first = static_cast<std::size_t>(rank_) * count;
    check("reduce_scatter", out, count, [&](std::size_t i) { return sum(size_, first + i); });
  }

  void all_to_all(std::size_t count) {
    const Values in = values(rank_, blocks(count));
    Values out = with_guards(blocks(count));
    run(request(Kind::kAllToAll, &in, &out, count));
    const std::size_t first = static_cast<std::size_t>(rank_) * count;
    check("all_to_all", out, blocks(count),
          [&](std::size_t i) { return value(static_cast<int>(i / count), first + i % count); });
  }

  void broadcast(std::size_t count, int root) {
    const Values in = values(root, count);
    Values out = with_guards(count);
    run(request(Kind::kBroadcast, rank_ == root ? &in : &out, &out, count, root));
    check("broadcast", out, count, [&](std::size_t i) { return value(root, i); });
  }

  void gather(std::size_t count, int root) {
    const Values in = values(rank_, count);
    Values out = with_guards(rank_ == root ? blocks(count) : 0);
    run(request(Kind::kGather, &in, &out, count, root));
    check("gather", out, rank_ == root ? blocks(count) : 0,
          [&](std::size_t i) { return value(static_cast<int>(i / count), i % count); });
  }

  // Rank r brings (r + 1) * count bytes.
  void gather_bytes(std::size_t count, int root) {
    const auto bytes_of_rank = [&](int rank) {
      return (static_cast<std::size_t>(rank) + 1) * count;
    };
    const auto own = test::pattern(bytes_of_rank(rank_), static_cast<std::uint32_t>(rank_));
    Request asked = request(Kind::kGatherBytes, nullptr, nullptr, own.size(), root);
    asked.src = own.data();
    asked.dtype = DType::kUInt8;
    const Result result = run(asked);
    if (rank_ != root) return;
    std::vector<std::byte> expected;
    for (int rank = 0; rank < size_; ++rank) {
      std::byte length[8];
      store(length, std::uint64_t{bytes_of_rank(rank)});
      expected.insert(expected.end(), length, length + 8);
      const auto data = test::pattern(bytes_of_rank(rank), static_cast<std::uint32_t>(rank));
      expected.insert(expected.end(), data.begin(), data.end());
    }
    if (result.blob != expected) complain("gather_bytes of " + std::to_string(count));
  }

  // To memory that was expected, or to a blob.
  void scatter(std::size_t count, int root, bool is_expected) {
    const Values in = values(root, blocks(count));
    Values out = with_guards(count);
    Request asked = request(Kind::kScatter, &in, &out, rank_ == root ? count : 0, root);
    asked.meta = {std::byte{7}, std::byte{8}};
    if (rank_ != root && !is_expected) asked.dst = nullptr;
    const Result result = run(asked);
    const std::size_t first = static_cast<std::size_t>(rank_) * count;
    if (rank_ == root || is_expected) {
      check("scatter", out, count, [&](std::size_t i) { return value(root, first + i); });
      return;
    }
    std::vector<std::byte> expected(4 + 2 + 4 * count);
    store(expected.data(), std::uint32_t{2});
    copy_bytes(expected.data() + 4, asked.meta.data(), 2);
    copy_bytes(expected.data() + 6, in.data() + first, 4 * count);
    if (result.blob != expected) complain("scatter to a blob of " + std::to_string(count));
  }

  // Around the ring, with and without a known size.
  void messages(std::size_t count) {
    const int to = (rank_ + 1) % size_;
    const int from = (rank_ + size_ - 1) % size_;
    const Values in = values(rank_, count);
    Values out = with_guards(count);
    const auto sent = group_.submit(request(Kind::kSend, &in, nullptr, count, to));
    run(request(Kind::kReceive, nullptr, &out, count, from));
    check("recv", out, count, [&](std::size_t i) { return value(from, i); });
    const auto bytes = test::pattern(count, static_cast<std::uint32_t>(rank_));
    Request asked = request(Kind::kSend, nullptr, nullptr, count, to);
    asked.src = bytes.data();
    asked.dtype = DType::kUInt8;
    asked.tag = -5;
    const auto sent_bytes = group_.submit(asked);
    asked.kind = Kind::kReceiveBytes;
    asked.peer = from;
    asked.count = 0;
    const Result result = run(asked);
    if (result.blob != test::pattern(count, static_cast<std::uint32_t>(from))) {
      complain("recv_bytes of " + std::to_string(count));
    }
    bool interrupted = false;
    for (const auto& pending : {sent, sent_bytes}) {
      if (!pending->wait(test::kPatience, nullptr, &interrupted)) return complain("send hangs");
      if (pending->result().failure) complain(text_of(*pending->result().failure));
    }
  }

  Group& group_;
  const int rank_;
  const int size_;
  std::string& complaint_;
};

const char* fabric_name(FabricKind fabric) { return fabric == FabricKind::kShm ? "shm" : "tcp"; }

constexpr std::size_t kFrameInts = kFrameBytes / sizeof(std::int32_t);

}  // namespace

// Every operation gives on every rank what plain arithmetic gives, for all small sizes and around
// the frame's, for groups of 2 to 5 over both fabrics and topologies.
TEST_CASE("group: every operation") {
  const std::size_t counts[] = {
      0, 1, 2, 3, 5, 4096, 4097, kFrameInts - 1, kFrameInts, kFrameInts + 1, 2 * kFrameInts + 5};
  for (const FabricKind fabric : {FabricKind::kShm, FabricKind::kTcp}) {
    for (const Topology topology : {Topology::kMesh, Topology::kRing}) {
      for (int size = 2; size <= 5; ++size) {
        // All sizes with each fabric and with each topology; the other pairings with three ranks.
        const bool is_pair = (fabric == FabricKind::kShm) == (topology == Topology::kMesh);
        if (!is_pair && size != 3) continue;
        INFO(std::string(fabric_name(fabric)), ", topology ", static_cast<int>(topology), ", size ",
             size);
        Team team({.size = size, .fabric = fabric, .topology = topology});
        Complaints complaints(static_cast<std::size_t>(size));
        team.each([&](int rank) {
          Player player(team[rank], rank, size, complaints[static_cast<std::size_t>(rank)]);
          for (const std::size_t count : counts) {
            if (count < kFrameInts - 1 || (size == 3 && is_pair)) player.play(count);
          }
        });
        check_none(complaints);
      }
    }
  }
}

// A large reduction takes many frames, whatever remains at the end, and fits through small buffers.
TEST_CASE("group: large reductions") {
  for (const FabricKind fabric : {FabricKind::kShm, FabricKind::kTcp}) {
    for (const Topology topology : {Topology::kMesh, Topology::kRing}) {
      INFO(std::string(fabric_name(fabric)), ", topology ", static_cast<int>(topology));
      constexpr int kSize = 3;
      Team team({.size = kSize, .fabric = fabric, .topology = topology, .buffer_bytes = 16 * 1024});
      Complaints complaints(kSize);
      team.each([&](int rank) {
        const std::size_t count = 20 * kFrameInts + 17;
        Values data = values(rank, count);
        const Result result =
            team[rank].run(request(Kind::kAllReduce, &data, &data, count), nullptr);
        std::string& complaint = complaints[static_cast<std::size_t>(rank)];
        if (result.failure) complaint = text_of(*result.failure);
        for (std::size_t i = 0; i < count && complaint.empty(); ++i) {
          if (data[i] != sum(kSize, i)) complaint = "wrong at " + std::to_string(i);
        }
      });
      check_none(complaints);
    }
  }
}

// 16-bit floats add up in the same order on all ranks: all hold the same bits.
TEST_CASE("group: one result for all") {
  for (const Topology topology : {Topology::kMesh, Topology::kRing}) {
    constexpr int kSize = 4;
    for (const std::size_t count : {std::size_t{1000}, kFrameBytes}) {
      CAPTURE(count);
      Team team({.size = kSize, .topology = topology});
      std::vector<std::byte> results[kSize];
      Complaints complaints(kSize);
      team.each([&](int rank) {
        std::vector<std::byte>& data = results[rank];
        data = test::pattern(2 * count, static_cast<std::uint32_t>(rank));
        for (std::size_t i = 1; i < data.size(); i += 2) data[i] &= std::byte{0xbf};  // finite
        Request asked;
        asked.kind = Kind::kAllReduce;
        asked.src = asked.dst = data.data();
        asked.count = count;
        asked.dtype = DType::kBFloat16;
        const Result result = team[rank].run(asked, nullptr);
        if (result.failure) complaints[static_cast<std::size_t>(rank)] = text_of(*result.failure);
      });
      check_none(complaints);
      for (const auto& result : results) CHECK(result == results[0]);
    }
  }
}

// Ranks that send each other more than all buffers hold, while they receive, do not lock up.
TEST_CASE("group: everybody sends at once") {
  for (const FabricKind fabric : {FabricKind::kShm, FabricKind::kTcp}) {
    INFO(std::string(fabric_name(fabric)));
    constexpr int kSize = 3;
    constexpr std::size_t kCount = 24 * kFrameInts;
    Team team({.size = kSize, .fabric = fabric, .buffer_bytes = 8 * 1024});
    Complaints complaints(kSize);
    team.each([&](int rank) {
      std::string& complaint = complaints[static_cast<std::size_t>(rank)];
      const Values in = values(rank, kCount);
      std::vector<std::shared_ptr<Group::Pending>> sent;
      for (int distance = 1; distance < kSize; ++distance) {
        const int to = (rank + distance) % kSize;
        sent.push_back(team[rank].submit(request(Kind::kSend, &in, nullptr, kCount, to)));
      }
      for (int distance = 1; distance < kSize; ++distance) {
        const int from = (rank + kSize - distance) % kSize;
        Values out(kCount);
        const Result result =
            team[rank].run(request(Kind::kReceive, nullptr, &out, kCount, from), nullptr);
        if (result.failure) complaint = text_of(*result.failure);
        if (out != values(from, kCount)) complaint = "wrong bytes";
      }
      for (const auto& pending : sent) {
        bool interrupted = false;
        if (!pending->wait(test::kPatience, nullptr, &interrupted)) complaint = "send hangs";
      }
    });
    check_none(complaints);
  }
}

// Operations that several threads submit at once all run: none stands in its own way.
TEST_CASE("group: many threads submit") {
  constexpr int kSize = 2;
  constexpr int kThreads = 4;
  constexpr int kEach = 50;
  Team team({.size = kSize});
  std::atomic<int> failures{0};
  test::Threads threads;
  const Values in = values(0, 10);
  for (int rank = 0; rank < kSize; ++rank) {
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.start([&, rank] {
        std::vector<std::shared_ptr<Group::Pending>> all;
        std::vector<Values> outs(kEach, Values(10));
        for (int i = 0; i < kEach; ++i) {
          all.push_back(team[rank].submit(request(Kind::kSend, &in, nullptr, 10, 1 - rank)));
          all.push_back(team[rank].submit(
              request(Kind::kReceive, nullptr, &outs[static_cast<std::size_t>(i)], 10, 1 - rank)));
        }
        for (const auto& pending : all) {
          bool interrupted = false;
          const bool is_done = pending->wait(test::kPatience, nullptr, &interrupted);
          if (!is_done || pending->result().failure) ++failures;
        }
        for (const Values& out : outs) failures += out != in;
      });
    }
  }
  threads.join();
  CHECK(failures == 0);
}

// Called and submitted operations run in the order in which they were asked for.
TEST_CASE("group: submission order") {
  constexpr int kSize = 3;
  Team team({.size = kSize});
  Complaints complaints(kSize);
  team.each([&](int rank) {
    std::string& complaint = complaints[static_cast<std::size_t>(rank)];
    Group& group = team[rank];
    Values data(100, 1);
    std::vector<std::shared_ptr<Group::Pending>> all;
    for (int i = 0; i < 5; ++i) {
      all.push_back(group.submit(request(Kind::kAllReduce, &data, &data, 100)));
    }
    const Result last = group.run(request(Kind::kAllReduce, &data, &data, 100), nullptr);
    if (last.failure) complaint = text_of(*last.failure);
    for (const auto& pending : all) {
      bool interrupted = false;
      if (!pending->wait(test::kPatience, nullptr, &interrupted)) complaint = "one hangs";
    }
    if (data != Values(100, 729)) complaint = "not six sums, one after another";
  });
  check_none(complaints);
}

// The completion descriptor is readable when something submitted has ended, until it is drained.
TEST_CASE("group: completions can be polled for") {
  Team team({.size = 2});
  const int fd = team[0].completion_fd();
  const auto is_readable = [&] {
    pollfd ready = {fd, POLLIN, 0};
    return poll(&ready, 1, 0) == 1;
  };
  const auto pending = team[0].submit(request(Kind::kBarrier, nullptr, nullptr, 0));
  CHECK_FALSE(pending->is_done());
  CHECK_FALSE(is_readable());
  const Result other = team[1].run(request(Kind::kBarrier, nullptr, nullptr, 0), nullptr);
  CHECK_FALSE(other.failure);
  CHECK(test::eventually(is_readable));
  CHECK(test::eventually([&] { return pending->is_done(); }));
  team[0].drain_completions();
  CHECK_FALSE(is_readable());
}

// A group of one gives its own answer to everything.
TEST_CASE("group: of one") {
  Team team({.size = 1});
  const Values in = values(0, 100);
  for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter,
                          Kind::kBroadcast, Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
    CAPTURE(static_cast<int>(kind));
    Values out(100);
    const Result result = team[0].run(request(kind, &in, &out, 100), nullptr);
    CHECK_FALSE(result.failure);
    CHECK(out == in);
  }
  CHECK_FALSE(team[0].run(request(Kind::kBarrier, nullptr, nullptr, 0), nullptr).failure);
  CHECK(team[0].is_healthy());
  CHECK(std::string(team[0].close(Watch::Goodbye::kOrderly)) == "orderly");
}

}  // namespace standfast
