// The step that the mesh's reductions share: one frame of every rank, added up in rank order.
#pragma once

#include "core/collective/comm.h"

namespace standfast {

// This rank's elements and one frame of every other rank, in rank order, to `out`. `settles`: `out`
// is memory that frames on their way still need.
inline Outcome add_frames(Comm& comm, const Reduction& reduction, const std::byte* own,
                          std::byte* out, std::size_t count, bool settles) {
  const void* sources[kRanksMax];
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::byte* frame = own;
    if (rank != comm.rank()) SF_TRY(comm.view(rank, count * reduction.bytes, &frame));
    sources[rank] = frame;
  }
  if (settles) SF_TRY(comm.flush());
  reduction.all(out, sources, comm.size(), count);
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank != comm.rank()) SF_TRY(comm.release(rank));
  }
  return Outcome::kOk;
}

}  // namespace standfast
