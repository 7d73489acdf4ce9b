// Which algorithm an operation runs. Pure, and the same on all ranks for the same arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/fabric/fabric.h"

namespace standfast {

// kDirect and kTwoPhase are a mesh with one of its algorithms only: for `standfast bench --model`,
// which measures where one overtakes the other.
enum class Topology : std::uint8_t { kAuto, kMesh, kRing, kDirect, kTwoPhase };

enum class Algorithm : std::uint8_t {
  kDirect,    // everybody to everybody in one phase: fewest steps
  kTwoPhase,  // mesh: reduce-scatter, then all-gather, interleaved piece by piece. barrier: in
              // log2(n) rounds
  kRing,      // around the ring, in both directions at once
};

struct Shape {
  OpKind kind;
  std::size_t bytes;  // of the buffer that is reduced or moved, on one rank
  int size;
  Topology topology;
  FabricKind fabric;  // the group's, see group_fabric()
};

Algorithm choose(const Shape& shape);

// From which sizes on which algorithm is the faster one, as measured (switch_points.inc).
struct SwitchPoints {
  FabricKind fabric;
  int ranks;                    // for groups of up to so many; the fabric's last row for larger
  std::size_t direct_bytes;     // all_reduce: in one phase up to here
  std::size_t ring_all_reduce;  // where the topology is left to us: around the ring from here on
  std::size_t ring_all_gather;
  std::size_t ring_reduce_scatter;
};
inline constexpr std::size_t kNeverBytes = SIZE_MAX;

const SwitchPoints& switch_points(FabricKind fabric, int ranks);

// Elements of one frame of a pipeline.
std::size_t piece_elements(std::size_t element_bytes);

}  // namespace standfast
