#include "core/collective/traffic.h"

#include <algorithm>
#include <bit>

#include "core/base/error.h"
#include "core/collective/comm.h"
#include "core/reduce/reduce.h"

namespace standfast {
namespace {

// `length` elements in pieces, each a frame.
Traffic in_pieces(std::size_t length, std::size_t piece, std::size_t element_bytes) {
  return {rounds_of(length, piece), length * element_bytes};
}

Traffic stream(std::size_t bytes) { return in_pieces(bytes, kFrameBytes, 1); }

// A message always has a frame.
Traffic message(std::size_t bytes) {
  return {std::max<std::size_t>(1, stream(bytes).frames), bytes};
}

class Formula {
 public:
  explicit Formula(const Load& load)
      : load_(load),
        others_(static_cast<std::uint64_t>(load.size - 1)),
        element_(dtype_bytes(load.dtype)),
        partial_(dtype_bytes(partial_dtype(load.op, load.dtype))),
        bytes_(load.count * element_),
        around_(load.algorithm == Algorithm::kRing) {}

  Traffic all_reduce() const {
    if (around_) {
      const std::size_t half = load_.count / 2;
      Traffic sum = all_reduce_around(Blocks::sliced(0, half, load_.size), +1);
      return sum += all_reduce_around(Blocks::sliced(half, load_.count - half, load_.size), -1);
    }
    return load_.algorithm == Algorithm::kDirect ? Traffic{1, bytes_} * others_ : two_phase();
  }

  // Direct: a block to everybody else. Around the ring: as many blocks, half of each on either way.
  Traffic reduce_scatter() const {
    if (!around_) return in_pieces(load_.count, piece_elements(element_), element_) * others_;
    const std::size_t half = load_.count / 2;
    Traffic sum;
    for (int step = 0; step < load_.size - 1; ++step) {
      sum += partials(half, step);
      sum += partials(load_.count - half, step);
    }
    return sum;
  }

  // Of n blocks every rank sends n - 1, its own to everybody or most of them onwards.
  Traffic all_gather() const { return stream(bytes_) * others_; }
  Traffic all_to_all() const { return stream(bytes_) * others_; }

  // Along chains a rank sends to its right, to its left, or to both.
  Traffic broadcast() const {
    const int ahead = (load_.rank - load_.root + load_.size) % load_.size;
    const int forward = load_.size / 2;
    const int backward = load_.size - 1 - forward;
    if (!around_) return ahead == 0 ? stream(bytes_) * others_ : Traffic{};
    if (ahead == 0) {
      return stream(bytes_) * static_cast<std::uint64_t>((forward > 0) + (backward > 0));
    }
    const bool is_last = ahead == forward || ahead == forward + 1;
    return is_last ? Traffic{} : stream(bytes_);
  }

  Traffic gather() const { return load_.rank == load_.root ? Traffic{} : message(bytes_); }
  Traffic send() const { return message(bytes_); }

  // One round: to everybody. Dissemination: the logarithm of n. Around the ring: both ways, half
  // around.
  Traffic barrier() const {
    if (load_.algorithm == Algorithm::kDirect) return {others_, 0};
    const auto halves = static_cast<std::uint64_t>(load_.size / 2);
    const auto rounds = static_cast<std::uint64_t>(std::bit_width(others_));
    return {around_ ? 2 * halves : rounds, 0};
  }

 private:
  int rank_at(int distance) const {
    return ((load_.rank + distance) % load_.size + load_.size) % load_.size;
  }

  // Every other rank's block to it, then this rank's own sums to everybody: 2 (n-1)/n of the buffer
  // where n divides it.
  Traffic two_phase() const {
    const Blocks blocks = Blocks::sliced(0, load_.count, load_.size);
    const std::size_t piece = piece_elements(element_);
    Traffic sum = in_pieces(blocks.length(load_.rank), piece, element_) * others_;
    for (int distance = 1; distance < load_.size; ++distance) {
      sum += in_pieces(blocks.length(rank_at(distance)), piece, element_);
    }
    return sum;
  }

  // A step of a reduce-scatter around the ring: the first one carries elements, later ones partial
  // sums.
  Traffic partials(std::size_t length, int step) const {
    const std::size_t piece = piece_elements(std::max(element_, partial_));
    return in_pieces(length, piece, step == 0 ? element_ : partial_);
  }

  // n-1 steps of a reduce-scatter, that send all blocks but this rank's own, and n-1 of an
  // all-gather, that send all but the one of the rank ahead.
  Traffic all_reduce_around(const Blocks& blocks, int direction) const {
    Traffic sum;
    for (int step = 0; step < load_.size - 1; ++step) {
      sum += partials(blocks.length(rank_at(-direction * (step + 1))), step);
      const std::size_t length = blocks.length(rank_at(-direction * step));
      sum += in_pieces(length, piece_elements(element_), element_);
    }
    return sum;
  }

  const Load& load_;
  const std::uint64_t others_;
  const std::size_t element_;
  const std::size_t partial_;
  const std::size_t bytes_;
  const bool around_;
};

}  // namespace

Traffic traffic_of(const Load& load) {
  const Formula formula(load);
  switch (load.kind) {
    case OpKind::kAllReduce: return formula.all_reduce();
    case OpKind::kReduceScatter: return formula.reduce_scatter();
    case OpKind::kAllGather: return formula.all_gather();
    case OpKind::kAllToAll: return formula.all_to_all();
    case OpKind::kBroadcast: return formula.broadcast();
    case OpKind::kGather: return formula.gather();
    case OpKind::kSend: return formula.send();
    case OpKind::kBarrier: return formula.barrier();
    default: SF_CHECK(false && "no formula"); return {};
  }
}

}  // namespace standfast
