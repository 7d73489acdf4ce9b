// all_to_all: block k of every rank to rank k, directly.
#include "core/collective/algorithms.h"

namespace standfast {

Outcome all_to_all(Comm& comm, const std::byte* in, std::byte* out, std::size_t bytes) {
  const auto block = [&](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  const std::size_t rounds = rounds_of(bytes, kFrameBytes);
  // Round r sends piece r and takes piece r-1, with every rank at another distance.
  for (std::size_t round = 0; round <= rounds; ++round) {
    const Piece next = piece_of(bytes, kFrameBytes, round);
    for (int distance = 1; distance < comm.size() && next.length > 0; ++distance) {
      const int to = comm.rank_at(distance);
      SF_TRY(comm.send(to, in + block(to) + next.begin, next.length));
    }
    if (round == 0) continue;
    const Piece at = piece_of(bytes, kFrameBytes, round - 1);
    for (int distance = 1; distance < comm.size(); ++distance) {
      const int from = comm.rank_at(-distance);
      SF_TRY(comm.receive(from, out + block(from) + at.begin, at.length));
    }
  }
  copy_bytes(out + block(comm.rank()), in + block(comm.rank()), bytes);
  return comm.flush();
}

}  // namespace standfast
