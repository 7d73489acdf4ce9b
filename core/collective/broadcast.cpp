// broadcast: from the root to everybody, or along the ring in both directions.
#include "core/collective/algorithms.h"

namespace standfast {
namespace {

Outcome direct(Comm& comm, int root, std::byte* data, std::size_t bytes) {
  const std::size_t rounds = rounds_of(bytes, kFrameBytes);
  for (std::size_t round = 0; round < rounds; ++round) {
    const Piece at = piece_of(bytes, kFrameBytes, round);
    if (comm.rank() != root) {
      SF_TRY(comm.receive(root, data + at.begin, at.length));
      continue;
    }
    for (int distance = 1; distance < comm.size(); ++distance) {
      SF_TRY(comm.send(comm.rank_at(distance), data + at.begin, at.length));
    }
  }
  return comm.flush();
}

// Two chains leave the root, one in each direction, and meet at the far side. Every rank hands a
// piece on as soon as it has it.
Outcome along_chains(Comm& comm, int root, std::byte* data, std::size_t bytes) {
  const int n = comm.size();
  const int ahead = (comm.rank() - root + n) % n;  // steps from the root in the + direction
  const int forward = n / 2;                       // ranks 1..forward get it in the + direction
  const bool is_root = ahead == 0;
  const bool on_forward = !is_root && ahead <= forward;
  const bool sends_forward = is_root ? forward >= 1 : on_forward && ahead < forward;
  const bool sends_backward = is_root ? n - 1 > forward : !on_forward && ahead > forward + 1;
  const std::size_t rounds = rounds_of(bytes, kFrameBytes);
  for (std::size_t round = 0; round < rounds; ++round) {
    const Piece at = piece_of(bytes, kFrameBytes, round);
    std::byte* piece = data + at.begin;
    if (!is_root) SF_TRY(comm.receive(comm.rank_at(on_forward ? -1 : +1), piece, at.length));
    if (sends_forward) SF_TRY(comm.send(comm.rank_at(+1), piece, at.length));
    if (sends_backward) SF_TRY(comm.send(comm.rank_at(-1), piece, at.length));
  }
  return comm.flush();
}

}  // namespace

Outcome broadcast(Comm& comm, Algorithm algorithm, int root, std::byte* data, std::size_t bytes) {
  return algorithm == Algorithm::kRing ? along_chains(comm, root, data, bytes)
                                       : direct(comm, root, data, bytes);
}

}  // namespace standfast
