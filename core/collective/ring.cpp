#include "core/collective/ring.h"

#include <algorithm>

namespace standfast {
namespace {

// Step s of a reduce-scatter: this rank sends on the block that it got in step s-1, or its own
// share in step 0.
class ReduceScatterStep {
 public:
  ReduceScatterStep(Comm& comm, const Reduction& reduction, const ReduceScatterPass& pass, int step)
      : comm_(comm),
        reduction_(reduction),
        pass_(pass),
        is_first_(step == 0),
        is_last_(step == comm.size() - 2),
        sent_block_(comm.rank_at(-pass.direction * (step + 1))),
        received_block_(comm.rank_at(-pass.direction * (step + 2))) {
    const std::size_t half = pass.blocks.longest() * reduction.partial_bytes;
    sent_ = pass.partials + (step % 2) * half;
    received_ = pass.partials + ((step + 1) % 2) * half;
  }

  Outcome send(std::size_t piece, std::size_t round) {
    const Piece at = piece_of(pass_.blocks.length(sent_block_), piece, round);
    if (at.length == 0) return Outcome::kOk;
    const int to = comm_.rank_at(pass_.direction);
    if (is_first_) {
      const std::byte* own = share(sent_block_) + at.begin * reduction_.bytes;
      return comm_.send(to, own, at.length * reduction_.bytes);
    }
    return comm_.send(to, sent_ + at.begin * reduction_.partial_bytes,
                      at.length * reduction_.partial_bytes);
  }

  Outcome receive(std::size_t piece, std::size_t round) {
    const Piece at = piece_of(pass_.blocks.length(received_block_), piece, round);
    if (at.length == 0) return Outcome::kOk;
    const int from = comm_.rank_at(-pass_.direction);
    const std::size_t bytes = at.length * (is_first_ ? reduction_.bytes : reduction_.partial_bytes);
    const std::byte* others = nullptr;
    SF_TRY(comm_.view(from, bytes, &others));
    const std::byte* own = share(received_block_) + at.begin * reduction_.bytes;
    add(others, own, at);
    return comm_.release(from);
  }

 private:
  const std::byte* share(int block) const {
    return pass_.in + pass_.blocks.begin(block) * reduction_.bytes;
  }

  void add(const std::byte* others, const std::byte* own, const Piece& at) {
    std::byte* result = pass_.result + at.begin * reduction_.bytes;
    std::byte* partial = received_ + at.begin * reduction_.partial_bytes;
    if (is_first_ && is_last_) {
      const void* both[2] = {others, own};
      reduction_.all(result, both, 2, at.length);
    } else if (is_first_) {
      reduction_.first(partial, others, own, at.length);
    } else if (is_last_) {
      reduction_.last(result, others, own, at.length);
    } else {
      reduction_.middle(partial, others, own, at.length);
    }
  }

  Comm& comm_;
  const Reduction& reduction_;
  const ReduceScatterPass& pass_;
  const bool is_first_;
  const bool is_last_;
  const int sent_block_;
  const int received_block_;
  const std::byte* sent_;
  std::byte* received_;
};

// Step s of an all-gather: this rank sends on the block that it got in step s-1, or its own in step
// 0.
class AllGatherStep {
 public:
  AllGatherStep(Comm& comm, std::size_t unit, const AllGatherPass& pass, int step)
      : comm_(comm),
        unit_(unit),
        pass_(pass),
        is_on_(step < pass.steps),
        sent_block_(comm.rank_at(-pass.direction * step)),
        received_block_(comm.rank_at(-pass.direction * (step + 1))),
        sent_(step == 0 ? pass.own : pass.out + pass.blocks.begin(sent_block_) * unit) {}

  Outcome send(std::size_t piece, std::size_t round) {
    const Piece at = piece_of(pass_.blocks.length(sent_block_), piece, round);
    if (!is_on_ || at.length == 0) return Outcome::kOk;
    return comm_.send(comm_.rank_at(pass_.direction), sent_ + at.begin * unit_, at.length * unit_);
  }

  Outcome receive(std::size_t piece, std::size_t round) {
    const Piece at = piece_of(pass_.blocks.length(received_block_), piece, round);
    if (!is_on_ || at.length == 0) return Outcome::kOk;
    std::byte* to = pass_.out + (pass_.blocks.begin(received_block_) + at.begin) * unit_;
    return comm_.receive(comm_.rank_at(-pass_.direction), to, at.length * unit_);
  }

 private:
  Comm& comm_;
  const std::size_t unit_;
  const AllGatherPass& pass_;
  const bool is_on_;
  const int sent_block_;
  const int received_block_;
  const std::byte* sent_;
};

template <class Step>
Outcome both_ways(Step& a, Step& b, std::size_t piece, std::size_t rounds) {
  for (std::size_t round = 0; round < rounds; ++round) {
    SF_TRY(a.send(piece, round));
    SF_TRY(b.send(piece, round));
    SF_TRY(a.receive(piece, round));
    SF_TRY(b.receive(piece, round));
  }
  return Outcome::kOk;
}

}  // namespace

Outcome reduce_scatter_around(Comm& comm, const Reduction& reduction, const ReduceScatterPass& a,
                              const ReduceScatterPass& b) {
  const std::size_t piece = piece_elements(std::max(reduction.bytes, reduction.partial_bytes));
  const std::size_t rounds = rounds_of(std::max(a.blocks.longest(), b.blocks.longest()), piece);
  for (int step = 0; step < comm.size() - 1; ++step) {
    // The partials that this step overwrites were sent one step ago. Their receiver is past that
    // step's frames or will be without us, so this can't lock up.
    SF_TRY(comm.flush());
    ReduceScatterStep first(comm, reduction, a, step);
    ReduceScatterStep second(comm, reduction, b, step);
    SF_TRY(both_ways(first, second, piece, rounds));
  }
  return Outcome::kOk;
}

Outcome all_gather_around(Comm& comm, std::size_t unit, const AllGatherPass& a,
                          const AllGatherPass& b) {
  const std::size_t piece = piece_elements(unit);
  const std::size_t rounds = rounds_of(std::max(a.blocks.longest(), b.blocks.longest()), piece);
  for (int step = 0; step < std::max(a.steps, b.steps); ++step) {
    AllGatherStep first(comm, unit, a, step);
    AllGatherStep second(comm, unit, b, step);
    SF_TRY(both_ways(first, second, piece, rounds));
  }
  return comm.flush();
}

}  // namespace standfast
