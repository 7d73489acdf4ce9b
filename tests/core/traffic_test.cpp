// Every algorithm sends exactly what its formula says, in groups of 2 to 64 ranks: on wires that
// count and take no more frames than a fabric has to.
#include "core/collective/traffic.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/collective/algorithms.h"
#include "tests/core/support.h"

namespace standfast {
namespace {

// One direction between two ranks.
struct Pipe {
  struct Frame {
    Tag tag;
    std::vector<std::byte> data;
  };
  std::mutex mutex;  // guards all below
  std::deque<Frame> frames;
  Traffic sent;
};

class CountingWire final : public Wire {
 public:
  CountingWire(int peer, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in)
      : Wire(peer, "memory"), out_(std::move(out)), in_(std::move(in)) {}

  Turn send(const Tag& tag, const void* data, std::size_t bytes) override {
    const std::lock_guard lock(out_->mutex);
    if (out_->frames.size() == kFramesInFlight) return Turn::kNotYet;
    const auto* begin = static_cast<const std::byte*>(data);
    out_->frames.push_back({tag, std::vector<std::byte>(begin, begin + bytes)});
    out_->sent += {1, bytes};
    return Turn::kDone;
  }
  Turn flush() override { return Turn::kDone; }
  void say_goodbye() override {}

  Turn receive(const Tag& tag, void* to, std::size_t bytes) override {
    const std::byte* data = nullptr;
    const Turn turn = view(tag, bytes, &data);
    if (turn != Turn::kDone) return turn;
    std::copy(data, data + bytes, static_cast<std::byte*>(to));
    return release();
  }
  Turn view(const Tag& tag, std::size_t bytes, const std::byte** data) override {
    const std::lock_guard lock(in_->mutex);
    if (in_->frames.empty()) return Turn::kNotYet;
    const Pipe::Frame& frame = in_->frames.front();
    if (frame.tag != tag || frame.data.size() != bytes) {
      return mismatch(frame.tag, frame.data.size());
    }
    *data = frame.data.data();
    return Turn::kDone;
  }
  Turn release() override {
    const std::lock_guard lock(in_->mutex);
    in_->frames.pop_front();
    return Turn::kDone;
  }
  Turn peek(Tag*, std::size_t*) override { return Turn::kBroken; }  // no algorithm here does

  int poll_fd() const override { return -1; }
  bool wakes_by_reading(Half) const override { return true; }
  bool must_be_polled() const override { return true; }
  void asleep(Half) override {}
  void awake(Half) override {}
  bool answer_bell(Half) override { return false; }
  std::string trouble() const override { return ""; }
  void shut_down() override {}
  void abandon() override {}

  Traffic sent() const {
    const std::lock_guard lock(out_->mutex);
    return out_->sent;
  }
  bool is_drained() const {
    const std::lock_guard lock(in_->mutex);
    return in_->frames.empty();
  }

 private:
  const std::shared_ptr<Pipe> out_;
  const std::shared_ptr<Pipe> in_;
};

// The ranks of a group, each for a thread of its own.
class Crew {
 public:
  explicit Crew(int size) : members_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      auto& member = members_[at(rank)];
      member = std::make_unique<Member>(rank, size);
    }
    for (int low = 0; low < size; ++low) {
      for (int high = low + 1; high < size; ++high) {
        const auto up = std::make_shared<Pipe>();
        const auto down = std::make_shared<Pipe>();
        members_[at(low)]->connect(std::make_unique<CountingWire>(high, up, down));
        members_[at(high)]->connect(std::make_unique<CountingWire>(low, down, up));
      }
    }
  }

  // Runs act(rank, comm) on every rank, and returns what each has sent.
  template <class Act>
  std::vector<Traffic> run(Act act) {
    std::vector<Outcome> outcomes(members_.size(), Outcome::kPending);
    test::Threads threads;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      threads.start([&, rank] {
        Comm& comm = members_[rank]->comm;
        Limits limits;
        limits.deadline = deadline_after(now_ns(), test::kPatience);
        members_[rank]->waiter.begin(limits);
        comm.begin({});
        outcomes[rank] = act(static_cast<int>(rank), comm);
      });
    }
    threads.join();
    std::vector<Traffic> sent;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      CAPTURE(rank);
      CHECK(outcomes[rank] == Outcome::kOk);
      sent.push_back(members_[rank]->traffic());
    }
    return sent;
  }

 private:
  struct Member {
    Member(int rank, int size)
        : wires(static_cast<std::size_t>(size)),
          waiter(abort, bell, neighbour, true, spin_budget(size, usable_cores()), wires),
          comm(rank, wires, waiter) {}
    void connect(std::unique_ptr<Wire> wire) { wires[at(wire->peer())] = std::move(wire); }
    // Of everything sent so far, also by others to this rank, nothing is left.
    Traffic traffic() const {
      Traffic sum;
      for (const auto& each : wires) {
        if (!each) continue;
        const auto& wire = dynamic_cast<const CountingWire&>(*each);
        CHECK(wire.is_drained());
        sum += wire.sent();
      }
      return sum;
    }

    AbortWord abort;
    Bell bell;
    Bell neighbour;
    std::vector<std::unique_ptr<Wire>> wires;
    Waiter waiter;
    Comm comm;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  std::vector<std::unique_ptr<Member>> members_;
};

// Sanitizers run a thread per rank many times slower; the formulas are the same.
constexpr int kSizeMax = test::kSlowness > 1 ? 8 : 64;
// Several frames for two ranks, less than one for 64; divisible by none of the sizes.
constexpr std::size_t kBufferBytes = (1 << 20) + 20;

constexpr Algorithm kAlgorithms[] = {Algorithm::kDirect, Algorithm::kTwoPhase, Algorithm::kRing};
const char* name_of(Algorithm algorithm) {
  if (algorithm == Algorithm::kRing) return "ring";
  return algorithm == Algorithm::kDirect ? "direct" : "two phases";
}

// One rank's part of an operation of any kind, on memory that is all zeros.
Outcome take_part(Comm& comm, const Load& load) {
  const std::size_t block = load.count * dtype_bytes(load.dtype);
  const std::size_t all = block * static_cast<std::size_t>(load.size);
  const bool spreads = load.kind == OpKind::kReduceScatter || load.kind == OpKind::kAllToAll;
  const bool collects = load.kind == OpKind::kAllGather || load.kind == OpKind::kAllToAll ||
                        load.kind == OpKind::kGather;
  std::vector<std::byte> in(spreads ? all : block);
  std::vector<std::byte> out(collects ? all : block);
  const Reduction reduction(load.op, load.dtype);
  switch (load.kind) {
    case OpKind::kAllReduce:
      return all_reduce(comm, load.algorithm, reduction, in.data(), out.data(), load.count);
    case OpKind::kReduceScatter:
      return reduce_scatter(comm, load.algorithm, reduction, in.data(), out.data(), load.count);
    case OpKind::kAllGather: return all_gather(comm, load.algorithm, in.data(), out.data(), block);
    case OpKind::kAllToAll: return all_to_all(comm, in.data(), out.data(), block);
    case OpKind::kBroadcast: return broadcast(comm, load.algorithm, load.root, out.data(), block);
    case OpKind::kGather: return gather(comm, load.root, in.data(), out.data(), block);
    case OpKind::kBarrier: return barrier(comm, load.algorithm);
    default: return Outcome::kLimit;
  }
}

void check_traffic(Load load) {
  CAPTURE(load.size);
  CAPTURE(load.count);
  CAPTURE(op_kind_name(load.kind));
  CAPTURE(name_of(load.algorithm));
  Crew crew(load.size);
  const auto as_seen_by = [&](int rank) {
    Load own = load;
    own.rank = rank;
    return own;
  };
  const std::vector<Traffic> sent =
      crew.run([&](int rank, Comm& comm) { return take_part(comm, as_seen_by(rank)); });
  for (int rank = 0; rank < load.size; ++rank) {
    CAPTURE(rank);
    const Traffic expected = traffic_of(as_seen_by(rank));
    CHECK(sent[static_cast<std::size_t>(rank)].frames == expected.frames);
    CHECK(sent[static_cast<std::size_t>(rank)].bytes == expected.bytes);
  }
}

}  // namespace

// A sum of fixed size, over more and more ranks.
TEST_CASE("group traffic: all_reduce") {
  for (int size = 2; size <= kSizeMax; size *= 2) {
    for (const Algorithm algorithm : kAlgorithms) {
      // One phase is one frame.
      const std::size_t bytes = algorithm == Algorithm::kDirect ? 16 * 1024 : kBufferBytes;
      check_traffic({OpKind::kAllReduce, algorithm, size, 0, bytes / sizeof(float)});
    }
  }
}

// Sizes that no power of two is, partial sums that are longer than elements, and nothing at all.
TEST_CASE("group traffic: all_reduce, odd cases") {
  for (const int size : {2, 3, 5, 7}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kBufferBytes / 2 + 1}) {
      for (const Algorithm algorithm : {Algorithm::kTwoPhase, Algorithm::kRing}) {
        check_traffic({OpKind::kAllReduce, algorithm, size, 0, count, DType::kFloat16});
      }
    }
  }
}

// The other collectives: what is fixed is the whole that they move, but where the root has it all.
TEST_CASE("group traffic: all other algorithms") {
  for (const int size : {2, 3, 4, 7, 8, 16, 32, 64}) {
    if (size > kSizeMax) continue;
    const std::size_t block = kBufferBytes / sizeof(float) / static_cast<std::size_t>(size);
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
      for (const OpKind kind : {OpKind::kReduceScatter, OpKind::kAllGather, OpKind::kAllToAll,
                                OpKind::kBroadcast, OpKind::kGather}) {
        check_traffic({kind, algorithm, size, 0, block, DType::kFloat32, ReduceOp::kSum, size / 2});
      }
    }
    for (const Algorithm algorithm : kAlgorithms) {
      check_traffic({OpKind::kBarrier, algorithm, size, 0, 0});
    }
  }
}

// The formulas in the words of the textbook: 2 (n-1)/n of the buffer from every rank, whichever way
// it goes, and n-1 times the buffer where it goes in one phase.
TEST_CASE("group traffic: the bytes of all_reduce, in closed form") {
  for (std::uint64_t size = 2; size <= 64; size *= 2) {
    CAPTURE(size);
    const std::uint64_t count = std::uint64_t{1} << 20;
    Load load{OpKind::kAllReduce, Algorithm::kTwoPhase, static_cast<int>(size), 0, count};
    const std::uint64_t least = 2 * (size - 1) * count * sizeof(float) / size;
    CHECK(traffic_of(load).bytes == least);
    load.algorithm = Algorithm::kRing;
    CHECK(traffic_of(load).bytes == least);
    load.algorithm = Algorithm::kDirect;
    CHECK(traffic_of(load).bytes == (size - 1) * count * sizeof(float));
  }
}

}  // namespace standfast
