// all_gather: everybody to everybody, or around the ring.
#include "core/base/stream.h"
#include "core/collective/algorithms.h"
#include "core/collective/ring.h"

namespace standfast {
namespace {

std::byte* own_block(const Comm& comm, std::byte* out, std::size_t bytes) {
  return out + static_cast<std::size_t>(comm.rank()) * bytes;
}

// Round r sends its piece to everybody and takes the piece of round r-1 of everybody. A piece goes
// to its place in this rank's own block while it is still in the cache.
Outcome direct(Comm& comm, const std::byte* in, std::byte* out, std::size_t bytes) {
  const std::size_t rounds = rounds_of(bytes, kFrameBytes);
  std::byte* own = own_block(comm, out, bytes);
  const bool is_streamed = static_cast<std::size_t>(comm.size()) * bytes >= kStreamedBytes;
  const auto copy = is_streamed ? stream_bytes : copy_bytes;
  const auto piece = [&](std::size_t round) {
    return piece_of(bytes, kFrameBytes, piece_in_turn(comm.tag(), round, rounds));
  };
  for (std::size_t round = 0; round <= rounds; ++round) {
    const Piece next = round < rounds ? piece(round) : Piece{0, 0};
    for (int distance = 1; distance < comm.size() && next.length > 0; ++distance) {
      SF_TRY(comm.send(comm.rank_at(distance), in + next.begin, next.length));
    }
    if (own != in) copy(own + next.begin, in + next.begin, next.length);
    if (round == 0) continue;
    const Piece at = piece(round - 1);
    for (int distance = 1; distance < comm.size(); ++distance) {
      const int from = comm.rank_at(-distance);
      std::byte* to = out + static_cast<std::size_t>(from) * bytes + at.begin;
      SF_TRY(comm.receive(from, to, at.length));
    }
  }
  return comm.flush();
}

// Both directions carry whole blocks, each half of the way.
Outcome around(Comm& comm, const std::byte* in, std::byte* out, std::size_t bytes) {
  const Blocks blocks = Blocks::strided(0, bytes, bytes);
  const int n = comm.size();
  std::byte* own = own_block(comm, out, bytes);
  if (own != in) copy_bytes(own, in, bytes);
  return all_gather_around(comm, 1, {+1, blocks, n / 2, in, out},
                           {-1, blocks, (n - 1) / 2, in, out});
}

}  // namespace

Outcome all_gather(Comm& comm, Algorithm algorithm, const std::byte* in, std::byte* out,
                   std::size_t bytes) {
  return algorithm == Algorithm::kRing ? around(comm, in, out, bytes)
                                       : direct(comm, in, out, bytes);
}

}  // namespace standfast
