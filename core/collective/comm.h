// What an algorithm sees of the group: ranks, and frames sent to and received from them. Every call
// waits, through the guard; what is not kOk is handed up at once.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/fabric/fabric.h"
#include "core/reduce/reduce.h"
#include "core/wait/wait.h"

namespace standfast {

// The largest group; arrays of one entry per rank live on the stack.
inline constexpr int kRanksMax = 1024;

// Memory for partial results. Grows to the largest operation's need and stays.
class Scratch {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (memory_.size() < bytes) memory_.resize(bytes);
    return memory_.data();
  }

 private:
  std::vector<std::byte> memory_;
};

// Damage that a verification found.
struct Finding {
  int rank = -1;  // whose data it is about
  std::string text;
};

class Comm {
 public:
  Comm(int rank, const std::vector<std::unique_ptr<Wire>>& wires, Waiter& waiter)
      : rank_(rank), wires_(wires), waiter_(waiter) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(wires_.size()); }
  // The rank `distance` steps around the ring, in either direction.
  int rank_at(int distance) const {
    const int at = (rank_ + distance) % size();
    return at < 0 ? at + size() : at;
  }
  Waiter& waiter() { return waiter_; }
  Wire& wire(int peer) { return *wires_[static_cast<std::size_t>(peer)]; }
  bool has_wire(int peer) const { return wires_[static_cast<std::size_t>(peer)] != nullptr; }
  Scratch& scratch() { return scratch_; }

  // The tag that all frames of the running operation carry.
  void begin(const Tag& tag) {
    tag_ = tag;
    bytes_done_ = 0;
  }
  const Tag& tag() const { return tag_; }
  std::size_t bytes_done() const { return bytes_done_; }

  // One frame, of at most kFrameBytes. `data` must stay as it is until flush().
  Outcome send(int to, const void* data, std::size_t bytes) {
    Wire& wire = this->wire(to);
    return waiter_.until(wire, Half::kSending, [&] { return wire.send(tag_, data, bytes); });
  }

  Outcome receive(int from, void* to, std::size_t bytes) {
    Wire& wire = this->wire(from);
    SF_TRY(waiter_.until(wire, Half::kReceiving, [&] { return wire.receive(tag_, to, bytes); }));
    bytes_done_ += bytes;
    return Outcome::kOk;
  }

  // The next frame in place, until release(). One at a time from each rank.
  Outcome view(int from, std::size_t bytes, const std::byte** data) {
    Wire& wire = this->wire(from);
    SF_TRY(waiter_.until(wire, Half::kReceiving, [&] { return wire.view(tag_, bytes, data); }));
    bytes_done_ += bytes;
    return Outcome::kOk;
  }
  Outcome release(int from) {
    Wire& wire = this->wire(from);
    return waiter_.until(wire, Half::kReceiving, [&] { return wire.release(); });
  }

  // Are results compared? The same on all ranks.
  bool verifies() const { return verifies_; }
  void set_verifies(bool verifies) { verifies_ = verifies; }
  Outcome damaged(Finding finding) {
    finding_ = std::move(finding);
    return Outcome::kDamaged;
  }
  const Finding& finding() const { return finding_; }

  // Until no frame needs the caller's memory any more.
  Outcome flush() { return waiter_.flush_all(); }

 private:
  const int rank_;
  const std::vector<std::unique_ptr<Wire>>& wires_;
  Waiter& waiter_;
  Scratch scratch_;
  Tag tag_;
  std::size_t bytes_done_ = 0;
  bool verifies_ = false;
  Finding finding_;
};

// A reduction's loops, looked up once per operation.
struct Reduction {
  Reduction(ReduceOp op, DType dtype)
      : bytes(dtype_bytes(dtype)),
        partial_bytes(dtype_bytes(partial_dtype(op, dtype))),
        all(reduce_fn(op, dtype)),
        first(ring_fn(op, dtype, RingStep::kFirst)),
        middle(ring_fn(op, dtype, RingStep::kMiddle)),
        last(ring_fn(op, dtype, RingStep::kLast)) {}

  std::size_t bytes;          // of one element
  std::size_t partial_bytes;  // of one element on its way around a ring
  ReduceFn all;
  RingFn first;
  RingFn middle;
  RingFn last;
};

// A buffer seen as one block of elements per rank.
class Blocks {
 public:
  // `count` elements from `first` on, cut into `parts` that differ by one element at most.
  static Blocks sliced(std::size_t first, std::size_t count, int parts) {
    const auto n = static_cast<std::size_t>(parts);
    return {first, count / n, count / n, count % n};
  }
  // `length` elements from `first` on, again every `stride` elements.
  static Blocks strided(std::size_t first, std::size_t length, std::size_t stride) {
    return {first, length, stride, 0};
  }

  std::size_t begin(int rank) const {
    const auto k = static_cast<std::size_t>(rank);
    return first_ + k * stride_ + (k < longer_ ? k : longer_);
  }
  std::size_t length(int rank) const {
    return length_ + (static_cast<std::size_t>(rank) < longer_ ? 1 : 0);
  }
  std::size_t longest() const { return length_ + (longer_ > 0 ? 1 : 0); }

 private:
  Blocks(std::size_t first, std::size_t length, std::size_t stride, std::size_t longer)
      : first_(first), length_(length), stride_(stride), longer_(longer) {}
  std::size_t first_;
  std::size_t length_;
  std::size_t stride_;
  std::size_t longer_;  // the first so many blocks hold one element more
};

// A block cut into pieces of at most `piece` elements: what lies in round number `round`.
struct Piece {
  std::size_t begin;   // from the block's start
  std::size_t length;  // 0: this block has no such round
};
inline Piece piece_of(std::size_t block_length, std::size_t piece, std::size_t round) {
  const std::size_t begin = round * piece;
  if (begin >= block_length) return {0, 0};
  const std::size_t left = block_length - begin;
  return {begin, left < piece ? left : piece};
}
inline std::size_t rounds_of(std::size_t longest, std::size_t piece) {
  return (longest + piece - 1) / piece;
}
// Which piece is the turn of round `round`. Every other operation goes through its memory
// backwards: what the one before it touched last, on the same memory, is still in the cache.
inline std::size_t piece_in_turn(const Tag& tag, std::size_t round, std::size_t rounds) {
  return tag.seq % 2 == 0 ? round : rounds - 1 - round;
}

}  // namespace standfast
