#include "core/jaccl/mesh.h"

#include <utility>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/jaccl/elements.h"
#include "core/jaccl/stamp.h"

namespace standfast::jaccl {
namespace {

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

Range block(int rank, std::size_t bytes) { return {static_cast<std::size_t>(rank) * bytes, bytes}; }

}  // namespace

Mesh::Mesh(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes)
    : Engine(layout, std::move(lanes)) {
  SF_CHECK(lane_count() + 1 == static_cast<std::size_t>(layout.size));
}

// What every sum has in common; order and src are still to be said.
Sum::Parts Mesh::parts_of(const Reduction& reduction, std::size_t bytes, const Cut& cut) const {
  Sum::Parts parts;
  parts.own = rank();
  parts.dst = reduction.dst;
  parts.bytes = bytes;
  parts.message = cut.message;
  parts.dtype = reduction.dtype;
  parts.combine = combine_fn(reduction.op, reduction.dtype);
  return parts;
}

// `fill` and `take` are those of Exchange, with the peer before the index.
template <class Fill, class Take>
void Mesh::with_all(Exchange& exchange, std::size_t count, const Fill& fill, const Take& take) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    exchange.send(lane_to(peer), count, [&fill, peer](std::size_t index, std::byte* to) {
      return Exchange::Used(fill(peer, index, to));
    });
    exchange.receive(lane_to(peer), count, [&take, peer](std::size_t index, const std::byte* from) {
      return Exchange::Used(take(peer, index, from));
    });
  }
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
  Exchange exchange(cut.message, digest_of(OpKind::kAllReduce, reduction));
  Sum::Parts parts = parts_of(reduction, bytes, cut);
  parts.order = ascending(size());
  parts.src = reduction.src;
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
  const auto fill = [&](int, std::size_t index, std::byte* to) {
    return copy_piece(to, reduction.src, piece({0, bytes}, cut.message, index));
  };
  const auto take = [&](int peer, std::size_t index, const std::byte* from) -> Exchange::Used {
    if (!sum.take(peer, index, from)) return std::nullopt;
    return note_received(piece({0, bytes}, cut.message, index).bytes);
  };
  with_all(exchange, cut.count, fill, take);
  return run(exchange, waiter, Half::kReceiving);
}

// Each rank adds up one chunk and gives it to all. Both phases are one stream: a piece goes out as
// soon as it is complete. Where dst is src, a peer's result of a piece comes only after it has this
// rank's contribution, so that nothing is overwritten early.
Outcome Mesh::reduce_chunks(Waiter& waiter, const Reduction& reduction, std::size_t chunk) {
  const std::size_t bytes = chunk * dtype_bytes(reduction.dtype);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message, digest_of(OpKind::kAllReduce, reduction));
  Sum::Parts parts = parts_of(reduction, bytes, cut);
  parts.order = own_first(rank(), size());
  parts.src = reduction.src + block(rank(), bytes).begin;
  parts.dst = reduction.dst + block(rank(), bytes).begin;
  Sum sum(std::move(parts));
  const auto fill = [&](int peer, std::size_t index, std::byte* to) -> Exchange::Used {
    if (index < cut.count) {
      return copy_piece(to, reduction.src, piece(block(peer, bytes), cut.message, index));
    }
    const std::size_t done = index - cut.count;
    if (sum.finished() <= done) return std::nullopt;
    return copy_piece(to, reduction.dst, piece(block(rank(), bytes), cut.message, done));
  };
  const auto take = [&](int peer, std::size_t index, const std::byte* from) -> Exchange::Used {
    const Range range = piece(block(peer, bytes), cut.message, index % cut.count);
    if (index >= cut.count) {
      copy_bytes(reduction.dst + range.begin, from, range.bytes);
    } else if (!sum.take(peer, index, from)) {
      return std::nullopt;
    }
    return note_received(range.bytes);
  };
  with_all(exchange, 2 * cut.count, fill, take);
  return run(exchange, waiter, Half::kReceiving);
}

Outcome Mesh::reduce_scatter(Waiter& waiter, const Reduction& reduction) {
  begin(Half::kReceiving);
  const std::size_t bytes = reduction.count * dtype_bytes(reduction.dtype);
  if (bytes == 0) return Outcome::kOk;
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message, digest_of(OpKind::kReduceScatter, reduction));
  Sum::Parts parts = parts_of(reduction, bytes, cut);
  parts.order = own_first(rank(), size());
  parts.src = reduction.src + block(rank(), bytes).begin;
  Sum sum(std::move(parts));
  const auto fill = [&](int peer, std::size_t index, std::byte* to) {
    return copy_piece(to, reduction.src, piece(block(peer, bytes), cut.message, index));
  };
  const auto take = [&](int peer, std::size_t index, const std::byte* from) -> Exchange::Used {
    if (!sum.take(peer, index, from)) return std::nullopt;
    return note_received(piece({0, bytes}, cut.message, index).bytes);
  };
  with_all(exchange, cut.count, fill, take);
  return run(exchange, waiter, Half::kReceiving);
}

Outcome Mesh::all_gather(Waiter& waiter, const std::byte* src, std::byte* dst, std::size_t bytes) {
  begin(Half::kReceiving);
  if (bytes == 0) return Outcome::kOk;
  std::byte* const own = dst + block(rank(), bytes).begin;
  if (own != src) copy_bytes(own, src, bytes);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message, digest_of_bytes(OpKind::kAllGather, bytes));
  const auto fill = [&](int, std::size_t index, std::byte* to) {
    return copy_piece(to, own, piece({0, bytes}, cut.message, index));
  };
  const auto take = [&](int peer, std::size_t index, const std::byte* from) {
    const Range range = piece(block(peer, bytes), cut.message, index);
    copy_bytes(dst + range.begin, from, range.bytes);
    return note_received(range.bytes);
  };
  with_all(exchange, cut.count, fill, take);
  return run(exchange, waiter, Half::kReceiving);
}

Outcome Mesh::send(Waiter& waiter, int peer, const std::byte* src, std::size_t bytes) {
  begin(Half::kSending);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message, digest_of_bytes(OpKind::kSend, bytes));
  exchange.send(lane_to(peer), cut.count, [&](std::size_t index, std::byte* to) -> Exchange::Used {
    return copy_piece(to, src, piece({0, bytes}, cut.message, index));
  });
  return run(exchange, waiter, Half::kSending);
}

Outcome Mesh::receive(Waiter& waiter, int peer, std::byte* dst, std::size_t bytes) {
  begin(Half::kReceiving);
  const Cut cut = jaccl::cut(layout().frames, bytes);
  Exchange exchange(cut.message, digest_of_bytes(OpKind::kSend, bytes));
  exchange.receive(lane_to(peer), cut.count,
                   [&](std::size_t index, const std::byte* from) -> Exchange::Used {
                     const Range range = piece({0, bytes}, cut.message, index);
                     copy_bytes(dst + range.begin, from, range.bytes);
                     return note_received(range.bytes);
                   });
  return run(exchange, waiter, Half::kReceiving);
}

}  // namespace standfast::jaccl
