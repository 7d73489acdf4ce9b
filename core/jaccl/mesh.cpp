#include "core/jaccl/mesh.h"

#include <functional>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/jaccl/elements.h"
#include "core/jaccl/stamp.h"

namespace standfast::jaccl {
namespace {

// Combines the contributions of all ranks to a range, message by message, always in one order.
class Sum {
 public:
  struct Parts {
    std::vector<int> order;          // of ranks
    int own = 0;                     // which of them is this one
    const std::byte* src = nullptr;  // its contribution
    std::byte* dst = nullptr;
    std::size_t bytes = 0;
    std::size_t message = 0;
    DType dtype{};
    CombineFn combine = nullptr;
    // Where dst is src: partial results, and whether a message's bytes are not needed any more.
    std::byte* partial = nullptr;
    std::function<bool(std::size_t index)> may_overwrite;
  };
  explicit Sum(Parts parts) : parts_(std::move(parts)) {}

  // False if others come first.
  bool take(int rank, std::size_t index, const std::byte* from) {
    if (index != index_ || rank != next_peer()) return false;
    const bool is_last = at_ + 1 + (is_own(at_) || is_own(at_ + 1)) == parts_.order.size();
    if (is_last && parts_.may_overwrite && !parts_.may_overwrite(index)) return false;
    add(from);
    if (at_ == parts_.order.size()) finish();
    return true;
  }
  // Messages whose result lies in dst.
  std::size_t finished() const { return index_; }

 private:
  bool is_own(std::size_t at) const {
    return at < parts_.order.size() && parts_.order[at] == parts_.own;
  }
  int next_peer() const { return parts_.order[at_ + is_own(at_)]; }
  Range here() const { return piece({0, parts_.bytes}, parts_.message, index_); }

  // This rank's own contribution is there whenever its turn comes.
  void add(const std::byte* from) {
    const Range range = here();
    const std::size_t count = range.bytes / dtype_bytes(parts_.dtype);
    const std::byte* own = parts_.src + range.begin;
    std::byte* to = parts_.partial != nullptr ? parts_.partial : parts_.dst + range.begin;
    const auto combine = [&](const std::byte* a, const std::byte* b) {
      parts_.combine(to, a, b, count, parts_.dtype);
    };
    if (is_own(at_)) {
      combine(own, from);
      at_ += 2;
      return;
    }
    const bool is_first = at_++ == 0;
    if (is_first && is_own(at_)) {
      combine(from, own);
      ++at_;
    } else if (is_first) {
      copy_bytes(to, from, range.bytes);
    } else {
      combine(to, from);
      if (is_own(at_)) {
        combine(to, own);
        ++at_;
      }
    }
  }

  void finish() {
    const Range range = here();
    if (parts_.partial != nullptr) {
      copy_bytes(parts_.dst + range.begin, parts_.partial, range.bytes);
    }
    at_ = 0;
    ++index_;
  }

  const Parts parts_;
  std::size_t index_ = 0;
  std::size_t at_ = 0;
};

std::vector<int> ascending(int size) {
  std::vector<int> order;
  for (int rank = 0; rank < size; ++rank) order.push_back(rank);
  return order;
}

// Where stock adds its peers in the order of arrival, a fixed one: the same bits in every run.
std::vector<int> own_first(int own, int size) {
  std::vector<int> order = {own};
  for (int rank = 0; rank < size; ++rank) {
    if (rank != own) order.push_back(rank);
  }
  return order;
}

Exchange::Used copy_piece(std::byte* to, const std::byte* base, const Range& range) {
  copy_bytes(to, base + range.begin, range.bytes);
  return range.bytes;
}

}  // namespace

Mesh::Mesh(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes)
    : Engine(layout, std::move(lanes)) {
  SF_CHECK(lane_count() + 1 == static_cast<std::size_t>(layout.size));
}

Outcome Mesh::all_reduce(Waiter& waiter, const Reduction& reduction) {
  begin(Half::kReceiving);
  const std::size_t item = dtype_bytes(reduction.dtype);
  if (size() == 2 || reduction.count * item <= kSmallReduction) {
    return reduce_whole(waiter, reduction);
  }
  const std::size_t chunk = reduction.count / static_cast<std::size_t>(size());
  const std::size_t done = chunk * static_cast<std::size_t>(size());
  if (chunk > 0) SF_TRY(reduce_chunks(waiter, reduction, chunk));
  Reduction rest = reduction;
  rest.src += done * item;
  rest.dst += done * item;
  rest.count -= done;
  return reduce_whole(waiter, rest);
}

// Everybody sends its whole input to everybody, and adds up for itself, in the order of ranks.
Outcome Mesh::reduce_whole(Waiter& waiter, const Reduction& reduction) {
  const std::size_t bytes = reduction.count * dtype_bytes(reduction.dtype);
  if (bytes == 0) return Outcome::kOk;
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message, operation_digest(OpKind::kAllReduce, reduction.dtype, reduction.op,
                                                  reduction.count));
  Sum::Parts parts{ascending(size()), rank(),          reduction.src, reduction.dst, bytes,
                   cut.message,       reduction.dtype, nullptr,       nullptr,       nullptr};
  parts.combine = combine_fn(reduction.op, reduction.dtype);
  if (reduction.src == reduction.dst) {
    parts.partial = scratch(cut.message);
    parts.may_overwrite = [&](std::size_t index) {
      for (std::size_t flow = 0; flow < lane_count(); ++flow) {
        if (exchange.sent(flow) <= index) return false;
      }
      return true;
    };
  }
  Sum sum(std::move(parts));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.send(lane_to(peer), cut.count,
                  [&](std::size_t index, std::byte* to) -> Exchange::Used {
                    return copy_piece(to, reduction.src, piece({0, bytes}, cut.message, index));
                  });
    exchange.receive(lane_to(peer), cut.count,
                     [&, peer](std::size_t index, const std::byte* from) -> Exchange::Used {
                       if (!sum.take(peer, index, from)) return std::nullopt;
                       return note_received(piece({0, bytes}, cut.message, index).bytes);
                     });
  }
  return run(exchange, waiter, Half::kReceiving);
}

// Each rank adds up one chunk and gives it to all. Both phases are one stream: a piece goes out as
// soon as it is complete. Where dst is src, a peer's result of a piece comes only after it has this
// rank's contribution, so that nothing is overwritten early.
Outcome Mesh::reduce_chunks(Waiter& waiter, const Reduction& reduction, std::size_t chunk) {
  const std::size_t bytes = chunk * dtype_bytes(reduction.dtype);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  const auto chunk_of = [bytes](int rank) {
    return Range{static_cast<std::size_t>(rank) * bytes, bytes};
  };
  const std::size_t own = chunk_of(rank()).begin;
  Exchange exchange(cut.message, operation_digest(OpKind::kAllReduce, reduction.dtype, reduction.op,
                                                  reduction.count));
  Sum::Parts parts{own_first(rank(), size()),
                   rank(),
                   reduction.src + own,
                   reduction.dst + own,
                   bytes,
                   cut.message,
                   reduction.dtype,
                   nullptr,
                   nullptr,
                   nullptr};
  parts.combine = combine_fn(reduction.op, reduction.dtype);
  Sum sum(std::move(parts));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.send(lane_to(peer), 2 * cut.count,
                  [&, peer](std::size_t index, std::byte* to) -> Exchange::Used {
                    if (index < cut.count) {
                      return copy_piece(to, reduction.src,
                                        piece(chunk_of(peer), cut.message, index));
                    }
                    if (sum.finished() <= index - cut.count) return std::nullopt;
                    return copy_piece(to, reduction.dst,
                                      piece(chunk_of(rank()), cut.message, index - cut.count));
                  });
    exchange.receive(lane_to(peer), 2 * cut.count,
                     [&, peer](std::size_t index, const std::byte* from) -> Exchange::Used {
                       const Range range = piece(chunk_of(peer), cut.message, index % cut.count);
                       if (index < cut.count) {
                         if (!sum.take(peer, index, from)) return std::nullopt;
                       } else {
                         copy_bytes(reduction.dst + range.begin, from, range.bytes);
                       }
                       return note_received(range.bytes);
                     });
  }
  return run(exchange, waiter, Half::kReceiving);
}

Outcome Mesh::reduce_scatter(Waiter& waiter, const Reduction& reduction) {
  begin(Half::kReceiving);
  const std::size_t bytes = reduction.count * dtype_bytes(reduction.dtype);
  if (bytes == 0) return Outcome::kOk;
  const Cut cut = jaccl::cut(layout().frames, bytes);
  const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
  Exchange exchange(cut.message, operation_digest(OpKind::kReduceScatter, reduction.dtype,
                                                  reduction.op, reduction.count));
  Sum::Parts parts{own_first(rank(), size()),
                   rank(),
                   reduction.src + own,
                   reduction.dst,
                   bytes,
                   cut.message,
                   reduction.dtype,
                   nullptr,
                   nullptr,
                   nullptr};
  parts.combine = combine_fn(reduction.op, reduction.dtype);
  Sum sum(std::move(parts));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.send(lane_to(peer), cut.count,
                  [&, peer](std::size_t index, std::byte* to) -> Exchange::Used {
                    const Range theirs{static_cast<std::size_t>(peer) * bytes, bytes};
                    return copy_piece(to, reduction.src, piece(theirs, cut.message, index));
                  });
    exchange.receive(lane_to(peer), cut.count,
                     [&, peer](std::size_t index, const std::byte* from) -> Exchange::Used {
                       if (!sum.take(peer, index, from)) return std::nullopt;
                       return note_received(piece({0, bytes}, cut.message, index).bytes);
                     });
  }
  return run(exchange, waiter, Half::kReceiving);
}

Outcome Mesh::all_gather(Waiter& waiter, const std::byte* src, std::byte* dst, std::size_t bytes) {
  begin(Half::kReceiving);
  if (bytes == 0) return Outcome::kOk;
  std::byte* const own = dst + static_cast<std::size_t>(rank()) * bytes;
  if (own != src) copy_bytes(own, src, bytes);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message,
                    operation_digest(OpKind::kAllGather, DType::kUInt8, ReduceOp::kSum, bytes));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.send(lane_to(peer), cut.count,
                  [&](std::size_t index, std::byte* to) -> Exchange::Used {
                    return copy_piece(to, own, piece({0, bytes}, cut.message, index));
                  });
    exchange.receive(lane_to(peer), cut.count,
                     [&, peer](std::size_t index, const std::byte* from) -> Exchange::Used {
                       const Range theirs{static_cast<std::size_t>(peer) * bytes, bytes};
                       const Range range = piece(theirs, cut.message, index);
                       copy_bytes(dst + range.begin, from, range.bytes);
                       return note_received(range.bytes);
                     });
  }
  return run(exchange, waiter, Half::kReceiving);
}

Outcome Mesh::send(Waiter& waiter, int peer, const std::byte* src, std::size_t bytes) {
  begin(Half::kSending);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message,
                    operation_digest(OpKind::kSend, DType::kUInt8, ReduceOp::kSum, bytes));
  exchange.send(lane_to(peer), cut.count, [&](std::size_t index, std::byte* to) -> Exchange::Used {
    return copy_piece(to, src, piece({0, bytes}, cut.message, index));
  });
  return run(exchange, waiter, Half::kSending);
}

Outcome Mesh::receive(Waiter& waiter, int peer, std::byte* dst, std::size_t bytes) {
  begin(Half::kReceiving);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message,
                    operation_digest(OpKind::kSend, DType::kUInt8, ReduceOp::kSum, bytes));
  exchange.receive(lane_to(peer), cut.count,
                   [&](std::size_t index, const std::byte* from) -> Exchange::Used {
                     const Range range = piece({0, bytes}, cut.message, index);
                     copy_bytes(dst + range.begin, from, range.bytes);
                     return note_received(range.bytes);
                   });
  return run(exchange, waiter, Half::kReceiving);
}

}  // namespace standfast::jaccl
