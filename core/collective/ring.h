// One direction's way around a ring, shared by the operations that use it. Each operation runs two
// of them at once, one clockwise and one counter-clockwise, on half of the elements each; with two
// ranks both use the same wire, in turn. After Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009.
#pragma once

#include <cstddef>

#include "core/collective/choose.h"
#include "core/collective/comm.h"

namespace standfast {

// Reduces block k of all ranks to rank k, in n-1 steps: what rank k+d sends first arrives at k
// last.
struct ReduceScatterPass {
  int direction;  // +1: data moves to higher ranks
  Blocks blocks;
  const std::byte* in;
  // Where block k's partial results live between two steps, and where this rank's own block ends
  // up.
  std::byte* partials;  // two blocks of the longest length, in turn
  std::byte* result;    // start of this rank's block
};
Outcome reduce_scatter_around(Comm& comm, const Reduction& reduction, const ReduceScatterPass& a,
                              const ReduceScatterPass& b);
// Bytes of `partials` for blocks of this length.
inline std::size_t partials_bytes(const Reduction& reduction, std::size_t longest) {
  return 2 * longest * reduction.partial_bytes;
}

// Brings block k of rank k to all ranks, in `steps` steps. Blocks are counted in units of `unit`
// bytes.
struct AllGatherPass {
  int direction;
  Blocks blocks;
  int steps;
  const std::byte* own;  // start of this rank's block
  std::byte* out;        // unit 0 of the whole
};
Outcome all_gather_around(Comm& comm, std::size_t unit, const AllGatherPass& a,
                          const AllGatherPass& b);

}  // namespace standfast
