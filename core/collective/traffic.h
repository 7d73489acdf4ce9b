// What an algorithm puts on the wires: the frames and bytes that one rank sends for one operation.
// Pure; a test holds every algorithm to it, from 2 to 64 ranks. Without the digests of a group that
// verifies. Of scatter and gather_bytes there is no such formula: sizes that only some ranks know
// travel with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/tag.h"
#include "core/collective/choose.h"

namespace standfast {

struct Traffic {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;  // of payload

  Traffic& operator+=(const Traffic& other) {
    frames += other.frames;
    bytes += other.bytes;
    return *this;
  }
  Traffic operator*(std::uint64_t times) const { return {frames * times, bytes * times}; }
  bool operator==(const Traffic&) const = default;
};

// What is asked for. Which count and which root, is said at collective/algorithms.h; in place of a
// count of bytes, a count of elements.
struct Load {
  OpKind kind;
  Algorithm algorithm;
  int size;
  int rank;
  std::size_t count;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  // or a send's destination
};

// What load.rank sends.
Traffic traffic_of(const Load& load);

}  // namespace standfast
