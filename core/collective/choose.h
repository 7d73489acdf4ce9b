// Which algorithm an operation runs. Pure, and the same on all ranks for the same arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/fabric/fabric.h"

namespace standfast {

enum class Topology : std::uint8_t { kAuto, kMesh, kRing };

enum class Algorithm : std::uint8_t {
  kDirect,    // everybody to everybody in one phase: fewest steps
  kTwoPhase,  // mesh: reduce-scatter, then all-gather, interleaved piece by piece
  kRing,      // around the ring, in both directions at once
};

struct Shape {
  OpKind kind;
  std::size_t bytes;  // of the buffer that is reduced or moved, on one rank
  int size;
  Topology topology;
};

Algorithm choose(const Shape& shape);

// Elements of one frame of a pipeline.
std::size_t piece_elements(std::size_t element_bytes);

}  // namespace standfast
