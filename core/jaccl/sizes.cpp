#include "core/jaccl/sizes.h"

#include <algorithm>

namespace standfast::jaccl {
namespace {

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

constexpr int kBothWays = 2;

}  // namespace

std::size_t message_bytes(Frames frames, std::size_t bytes) {
  if (frames == Frames::kFourKib) return kSmallMessage;
  // 8 KiB and more, by powers of two: the largest that is filled.
  std::size_t message = kSmallMessage;
  while (message < kLargestMessage && 2 * message <= bytes) message *= 2;
  return message;
}

Cut cut(Frames frames, std::size_t bytes) {
  const std::size_t message = message_bytes(frames, bytes);
  return {message, divide_up(bytes, message)};
}

Range piece(const Range& whole, std::size_t message, std::size_t index) {
  const std::size_t begin = std::min(whole.bytes, index * message);
  return {whole.begin + begin, std::min(message, whole.bytes - begin)};
}

Range RingShare::of(int chunk_index, int direction, int wire) const {
  const std::size_t chunk_begin = static_cast<std::size_t>(chunk_index) * chunk;
  const std::size_t offset = static_cast<std::size_t>(direction * wires + wire) * slice;
  const std::size_t end = std::min(chunk_begin + std::min(offset + slice, chunk), total);
  const std::size_t begin = std::min(chunk_begin + offset, end);
  return {begin, end - begin};
}

RingShare share_reduction(std::size_t count, std::size_t item, int ranks, int wires) {
  const auto n = static_cast<std::size_t>(ranks);
  const bool small =
      count * item <= kSmallReduction || count < 2 * n * static_cast<std::size_t>(wires);
  RingShare share;
  share.directions = small ? 1 : kBothWays;
  share.wires = small ? 1 : wires;
  const std::size_t chunk = divide_up(count, n);
  share.chunk = chunk * item;
  share.slice = divide_up(chunk, static_cast<std::size_t>(share.directions * share.wires)) * item;
  share.total = count * item;
  return share;
}

RingShare share_scatter(std::size_t count_out, std::size_t item, int ranks, int wires) {
  const auto n = static_cast<std::size_t>(ranks);
  const bool small =
      count_out * item <= kSmallScatter || n * count_out < 2 * n * static_cast<std::size_t>(wires);
  RingShare share;
  share.directions = kBothWays;
  share.wires = small ? 1 : wires;
  share.chunk = count_out * item;
  share.slice = divide_up(count_out, static_cast<std::size_t>(kBothWays * share.wires)) * item;
  share.total = n * share.chunk;
  return share;
}

RingShare share_gather(std::size_t bytes, int ranks, int wires) {
  RingShare share;
  share.directions = kBothWays;
  share.wires = wires;
  share.chunk = bytes;
  share.slice = divide_up(bytes, static_cast<std::size_t>(kBothWays * wires));
  share.total = static_cast<std::size_t>(ranks) * bytes;
  return share;
}

}  // namespace standfast::jaccl
