// all_reduce: direct, in two phases over the mesh, or around the ring.
#include "core/collective/add_frames.h"
#include "core/collective/algorithms.h"
#include "core/collective/ring.h"

namespace standfast {
namespace {

// One phase: everybody sends all to all, and adds in rank order.
Outcome direct(Comm& comm, const Reduction& reduction, const std::byte* in, std::byte* out,
               std::size_t count) {
  for (int distance = 1; distance < comm.size(); ++distance) {
    SF_TRY(comm.send(comm.rank_at(distance), in, count * reduction.bytes));
  }
  SF_TRY(add_frames(comm, reduction, in, out, count, in == out));
  return comm.flush();
}

// Two phases over the mesh, a pipeline of pieces. In round r a rank sends piece r of every other
// rank's block, adds up piece r-1 of its own block and sends it to everybody, and takes piece r-2
// of the other blocks. So a piece is still in the cache when it is sent on, and no rank is ever
// more than kFramesInFlight ahead of another.
class TwoPhase {
 public:
  TwoPhase(Comm& comm, const Reduction& reduction, const std::byte* in, std::byte* out,
           std::size_t count)
      : comm_(comm),
        reduction_(reduction),
        in_(in),
        out_(out),
        blocks_(Blocks::sliced(0, count, comm.size())),
        piece_(piece_elements(reduction.bytes)),
        rounds_(rounds_of(blocks_.longest(), piece_)) {}

  Outcome run() {
    for (std::size_t round = 0; round < rounds_ + 2; ++round) {
      if (round < rounds_) SF_TRY(scatter(round));
      if (round >= 1 && round - 1 < rounds_) SF_TRY(add_and_send(round - 1));
      if (round >= 2) SF_TRY(collect(round - 2));
    }
    return comm_.flush();
  }

 private:
  Piece piece(int rank, std::size_t round) const {
    Piece at = piece_of(blocks_.length(rank), piece_, round);
    at.begin += blocks_.begin(rank);
    return at;
  }

  Outcome scatter(std::size_t round) {
    for (int distance = 1; distance < comm_.size(); ++distance) {
      const int to = comm_.rank_at(distance);
      const Piece at = piece(to, round);
      if (at.length == 0) continue;
      SF_TRY(comm_.send(to, in_ + at.begin * reduction_.bytes, at.length * reduction_.bytes));
    }
    return Outcome::kOk;
  }

  Outcome add_and_send(std::size_t round) {
    const Piece at = piece(comm_.rank(), round);
    if (at.length == 0) return Outcome::kOk;
    std::byte* sum = out_ + at.begin * reduction_.bytes;
    SF_TRY(add_frames(comm_, reduction_, in_ + at.begin * reduction_.bytes, sum, at.length, false));
    for (int distance = 1; distance < comm_.size(); ++distance) {
      SF_TRY(comm_.send(comm_.rank_at(distance), sum, at.length * reduction_.bytes));
    }
    return Outcome::kOk;
  }

  Outcome collect(std::size_t round) {
    for (int distance = 1; distance < comm_.size(); ++distance) {
      const int from = comm_.rank_at(-distance);
      const Piece at = piece(from, round);
      if (at.length == 0) continue;
      SF_TRY(comm_.receive(from, out_ + at.begin * reduction_.bytes, at.length * reduction_.bytes));
    }
    return Outcome::kOk;
  }

  Comm& comm_;
  const Reduction& reduction_;
  const std::byte* in_;
  std::byte* out_;
  const Blocks blocks_;
  const std::size_t piece_;
  const std::size_t rounds_;
};

// Reduce-scatter around the ring, then all-gather; each half of the elements in its own direction.
Outcome around(Comm& comm, const Reduction& reduction, const std::byte* in, std::byte* out,
               std::size_t count) {
  const std::size_t half = count / 2;
  const Blocks a = Blocks::sliced(0, half, comm.size());
  const Blocks b = Blocks::sliced(half, count - half, comm.size());
  const std::size_t partials = partials_bytes(reduction, a.longest());
  std::byte* scratch = comm.scratch().at_least(partials + partials_bytes(reduction, b.longest()));
  std::byte* own_a = out + a.begin(comm.rank()) * reduction.bytes;
  std::byte* own_b = out + b.begin(comm.rank()) * reduction.bytes;
  SF_TRY(reduce_scatter_around(comm, reduction, {+1, a, in, scratch, own_a},
                               {-1, b, in, scratch + partials, own_b}));
  return all_gather_around(comm, reduction.bytes, {+1, a, comm.size() - 1, own_a, out},
                           {-1, b, comm.size() - 1, own_b, out});
}

}  // namespace

Outcome all_reduce(Comm& comm, Algorithm algorithm, const Reduction& reduction, const std::byte* in,
                   std::byte* out, std::size_t count) {
  switch (algorithm) {
    case Algorithm::kDirect: return direct(comm, reduction, in, out, count);
    case Algorithm::kTwoPhase: return TwoPhase(comm, reduction, in, out, count).run();
    case Algorithm::kRing: return around(comm, reduction, in, out, count);
  }
  return Outcome::kOk;
}

}  // namespace standfast
