// reduce_scatter: over the mesh piece by piece, or around the ring.
#include "core/collective/add_frames.h"
#include "core/collective/algorithms.h"
#include "core/collective/ring.h"

namespace standfast {
namespace {

// Round r sends piece r of every other rank's block and adds piece r-1 of this rank's own, in rank
// order.
Outcome direct(Comm& comm, const Reduction& reduction, const std::byte* in, std::byte* out,
               std::size_t count) {
  const std::size_t elements = piece_elements(reduction.bytes);
  const std::size_t rounds = rounds_of(count, elements);
  const auto share = [&](int rank, const Piece& at) {
    return in + (static_cast<std::size_t>(rank) * count + at.begin) * reduction.bytes;
  };
  for (std::size_t round = 0; round <= rounds; ++round) {
    const Piece next = piece_of(count, elements, round);
    for (int distance = 1; distance < comm.size() && next.length > 0; ++distance) {
      const int to = comm.rank_at(distance);
      SF_TRY(comm.send(to, share(to, next), next.length * reduction.bytes));
    }
    if (round == 0) continue;
    const Piece at = piece_of(count, elements, round - 1);
    SF_TRY(add_frames(comm, reduction, share(comm.rank(), at), out + at.begin * reduction.bytes,
                      at.length, false));
  }
  return comm.flush();
}

Outcome around(Comm& comm, const Reduction& reduction, const std::byte* in, std::byte* out,
               std::size_t count) {
  const std::size_t half = count / 2;
  const Blocks a = Blocks::strided(0, half, count);
  const Blocks b = Blocks::strided(half, count - half, count);
  const std::size_t partials = partials_bytes(reduction, half);
  std::byte* scratch = comm.scratch().at_least(partials + partials_bytes(reduction, count - half));
  SF_TRY(reduce_scatter_around(comm, reduction, {+1, a, in, scratch, out},
                               {-1, b, in, scratch + partials, out + half * reduction.bytes}));
  return comm.flush();
}

}  // namespace

Outcome reduce_scatter(Comm& comm, Algorithm algorithm, const Reduction& reduction,
                       const std::byte* in, std::byte* out, std::size_t count) {
  return algorithm == Algorithm::kRing ? around(comm, reduction, in, out, count)
                                       : direct(comm, reduction, in, out, count);
}

}  // namespace standfast
