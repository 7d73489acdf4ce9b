// How JACCL cuts an operation into messages. Messages carry no head: both ends must compute the
// same sizes and counts, or all that follows is garbage. Pure.
#pragma once

#include <cstddef>

#include "core/jaccl/layout.h"

namespace standfast::jaccl {

inline constexpr std::size_t kSmallMessage = 4 * 1024;
inline constexpr std::size_t kLargestMessage = 512 * 1024;
// Up to here a reduction sends whole inputs over a mesh, and uses one cable one way around a ring.
inline constexpr std::size_t kSmallReduction = 32 * 1024;
inline constexpr std::size_t kSmallScatter = 64 * 1024;

// The size of every message of an operation that moves `bytes` at once.
std::size_t message_bytes(Frames frames, std::size_t bytes);

struct Cut {
  std::size_t message = kSmallMessage;
  std::size_t count = 0;
};
Cut cut(Frames frames, std::size_t bytes);

// A stretch of a buffer.
struct Range {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};
// The part of `whole` that message `index` carries; the last one may be shorter, or empty.
Range piece(const Range& whole, std::size_t message, std::size_t index);

// How a ring shares a buffer among directions and cables: each carries, of every chunk, `slice`
// bytes.
struct RingShare {
  int directions = 1;
  int wires = 1;
  std::size_t chunk = 0;  // bytes of a chunk; there is one per rank
  std::size_t slice = 0;
  std::size_t total = 0;  // bytes of the whole buffer: the last chunk may be cut short, or missing

  // What direction and wire carry of a chunk.
  Range of(int chunk_index, int direction, int wire) const;
};
RingShare share_reduction(std::size_t count, std::size_t item, int ranks, int wires);
RingShare share_scatter(std::size_t count_out, std::size_t item, int ranks, int wires);
RingShare share_gather(std::size_t bytes, int ranks, int wires);

}  // namespace standfast::jaccl
