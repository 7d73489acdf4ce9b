#include "core/jaccl/ring.h"

#include <utility>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/jaccl/elements.h"
#include "core/jaccl/stamp.h"

namespace standfast::jaccl {

// Chunks that travel from rank to rank. Direction 0 sends to the right and receives from the left,
// direction 1 the other way round. In hop h a rank sends the chunk that it has received in hop
// h - 1. All hops are one stream per direction and cable: a piece goes on as soon as it is there.
struct Ring::Relay {
  RingShare share;
  int first[2] = {0, 0};  // the chunk that each direction sends first
  int hops = 0;
  int adding_hops = 0;  // this rank's part is added to what it receives in these; later it is kept
  const std::byte* src = nullptr;  // what is sent first, and what is added
  std::byte* dst = nullptr;
  // For partial results that do not stay here: a slice per direction and cable; null: they lie in
  // dst, each chunk in its place.
  std::byte* partial = nullptr;
  std::size_t item = 1;
  DType dtype = DType::kUInt8;
  CombineFn combine = nullptr;
  std::uint64_t operation = 0;  // its digest

  int sent_in(int hop, int direction, int ranks) const {
    const int away = direction == 0 ? -hop : hop;
    return ((first[direction] + away) % ranks + ranks) % ranks;
  }
};

Ring::Ring(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes)
    : Engine(layout, std::move(lanes)) {
  SF_CHECK(lane_count() >= 2 && lane_count() % 2 == 0);
}

Outcome Ring::relay(Waiter& waiter, const Relay& relay) {
  Exchange exchange(message_bytes(layout().frames, relay.share.slice), relay.operation);
  for (int direction = 0; direction < relay.share.directions; ++direction) {
    for (int wire = 0; wire < relay.share.wires; ++wire) {
      add_flow(exchange, relay, direction, wire);
    }
  }
  return run(exchange, waiter, Half::kReceiving);
}

void Ring::add_flow(Exchange& exchange, const Relay& relay, int direction, int wire) {
  const Cut cut = jaccl::cut(layout().frames, relay.share.slice);
  const std::size_t steps = cut.count;
  const std::size_t message = cut.message;
  const std::size_t total = steps * static_cast<std::size_t>(relay.hops);
  const auto number = static_cast<std::size_t>(direction * relay.share.wires + wire);
  std::byte* const partial =
      relay.partial == nullptr ? nullptr : relay.partial + number * relay.share.slice;
  const auto range_of = [&relay, direction, wire, steps, message, ranks = layout().size](
                            std::size_t index, int ahead) {
    const int hop = static_cast<int>(index / steps) + ahead;
    const Range slice = relay.share.of(relay.sent_in(hop, direction, ranks), direction, wire);
    return piece(slice, message, index % steps);
  };

  const std::size_t own_begin = static_cast<std::size_t>(layout().rank) * relay.share.chunk;

  // Flows are numbered as they are added: these two have the same number.
  exchange.send(direction == 0 ? right(wire) : left(wire), total,
                [=, &exchange, &relay](std::size_t index, std::byte* to) -> Exchange::Used {
                  const Range range = range_of(index, 0);
                  if (index < steps) {
                    copy_bytes(to, relay.src + range.begin, range.bytes);
                    return range.bytes;
                  }
                  if (exchange.taken(number) <= index - steps) return std::nullopt;
                  const std::byte* from = partial != nullptr ? partial + (index % steps) * message
                                                             : relay.dst + range.begin;
                  copy_bytes(to, from, range.bytes);
                  return range.bytes;
                });
  exchange.receive(
      direction == 0 ? left(wire) : right(wire), total,
      [=, this, &exchange, &relay](std::size_t index, const std::byte* from) -> Exchange::Used {
        const auto hop = static_cast<int>(index / steps);
        const bool is_last = hop + 1 == relay.hops;
        const Range range = range_of(index, 1);
        std::byte* to = relay.dst + range.begin;
        if (partial != nullptr) {
          // What the hop before has left there must be on its way.
          if (hop > 0 && exchange.sent(number) <= index) return std::nullopt;
          to = partial + (index % steps) * message;
          if (is_last) to = relay.dst + range.begin - own_begin;
        }
        if (hop < relay.adding_hops) {
          relay.combine(to, from, relay.src + range.begin, range.bytes / relay.item, relay.dtype);
        } else {
          copy_bytes(to, from, range.bytes);
        }
        return note_received(range.bytes);
      });
}

// Every chunk goes around once and gathers all contributions, and goes on to where it is wanted.
Outcome Ring::all_reduce(Waiter& waiter, const Reduction& reduction) {
  begin(Half::kReceiving);
  if (reduction.count == 0) return Outcome::kOk;
  Relay relay;
  relay.item = dtype_bytes(reduction.dtype);
  relay.share = share_reduction(reduction.count, relay.item, layout().size, wires());
  relay.first[0] = relay.first[1] = layout().rank;
  relay.operation = digest_of(OpKind::kAllReduce, reduction);
  relay.hops = 2 * (layout().size - 1);
  relay.adding_hops = layout().size - 1;
  relay.src = reduction.src;
  relay.dst = reduction.dst;
  relay.dtype = reduction.dtype;
  relay.combine = combine_fn(reduction.op, reduction.dtype);
  return this->relay(waiter, relay);
}

Outcome Ring::reduce_scatter(Waiter& waiter, const Reduction& reduction) {
  begin(Half::kReceiving);
  if (reduction.count == 0) return Outcome::kOk;
  Relay relay;
  relay.item = dtype_bytes(reduction.dtype);
  relay.share = share_scatter(reduction.count, relay.item, layout().size, wires());
  relay.operation = digest_of(OpKind::kReduceScatter, reduction);
  relay.first[0] = layout().left();
  relay.first[1] = layout().right();
  relay.hops = relay.adding_hops = layout().size - 1;
  relay.src = reduction.src;
  relay.dst = reduction.dst;
  relay.dtype = reduction.dtype;
  relay.combine = combine_fn(reduction.op, reduction.dtype);
  const auto slices = static_cast<std::size_t>(relay.share.directions * relay.share.wires);
  relay.partial = scratch(slices * relay.share.slice);
  return this->relay(waiter, relay);
}

Outcome Ring::all_gather(Waiter& waiter, const std::byte* src, std::byte* dst, std::size_t bytes) {
  begin(Half::kReceiving);
  if (bytes == 0) return Outcome::kOk;
  std::byte* const own = dst + static_cast<std::size_t>(layout().rank) * bytes;
  if (own != src) copy_bytes(own, src, bytes);
  Relay relay;
  relay.operation = digest_of_bytes(OpKind::kAllGather, bytes);
  relay.share = share_gather(bytes, layout().size, wires());
  relay.first[0] = relay.first[1] = layout().rank;
  relay.hops = layout().size - 1;
  relay.src = relay.dst = dst;
  return this->relay(waiter, relay);
}

namespace {

// A wire's share of a message between neighbours.
Range share_of(std::size_t bytes, int wires, int wire) {
  const auto count = static_cast<std::size_t>(wires);
  return piece({0, bytes}, (bytes + count - 1) / count, static_cast<std::size_t>(wire));
}

}  // namespace

Outcome Ring::send(Waiter& waiter, int peer, const std::byte* src, std::size_t bytes) {
  begin(Half::kSending);
  if (bytes == 0) return Outcome::kOk;
  const Cut whole = jaccl::cut(layout().frames, share_of(bytes, wires(), 0).bytes);
  Exchange exchange(whole.message, digest_of_bytes(OpKind::kSend, bytes));
  for (int wire = 0; wire < wires(); ++wire) {
    const Range share = share_of(bytes, wires(), wire);
    const std::size_t count = (share.bytes + whole.message - 1) / whole.message;
    exchange.send(peer == layout().left() ? left(wire) : right(wire), count,
                  [=](std::size_t index, std::byte* to) -> Exchange::Used {
                    const Range range = piece(share, whole.message, index);
                    copy_bytes(to, src + range.begin, range.bytes);
                    return range.bytes;
                  });
  }
  return run(exchange, waiter, Half::kSending);
}

Outcome Ring::receive(Waiter& waiter, int peer, std::byte* dst, std::size_t bytes) {
  begin(Half::kReceiving);
  if (bytes == 0) return Outcome::kOk;
  const Cut whole = jaccl::cut(layout().frames, share_of(bytes, wires(), 0).bytes);
  Exchange exchange(whole.message, digest_of_bytes(OpKind::kSend, bytes));
  for (int wire = 0; wire < wires(); ++wire) {
    const Range share = share_of(bytes, wires(), wire);
    const std::size_t count = (share.bytes + whole.message - 1) / whole.message;
    exchange.receive(peer == layout().right() ? right(wire) : left(wire), count,
                     [=, this](std::size_t index, const std::byte* from) -> Exchange::Used {
                       const Range range = piece(share, whole.message, index);
                       copy_bytes(dst + range.begin, from, range.bytes);
                       return note_received(range.bytes);
                     });
  }
  return run(exchange, waiter, Half::kReceiving);
}

}  // namespace standfast::jaccl
