// barrier: in one round or by dissemination (Hensgen, Finkel and Manber, 1988) over the mesh, or
// word passed along the ring.
#include "core/collective/algorithms.h"

namespace standfast {
namespace {

// Everybody tells everybody.
Outcome one_round(Comm& comm) {
  for (int distance = 1; distance < comm.size(); ++distance) {
    SF_TRY(comm.send(comm.rank_at(distance), nullptr, 0));
  }
  for (int distance = 1; distance < comm.size(); ++distance) {
    SF_TRY(comm.receive(comm.rank_at(-distance), nullptr, 0));
  }
  return comm.flush();
}

// After round k every rank has heard, directly or not, of 2^(k+1) ranks.
Outcome dissemination(Comm& comm) {
  for (int distance = 1; distance < comm.size(); distance *= 2) {
    SF_TRY(comm.send(comm.rank_at(distance), nullptr, 0));
    SF_TRY(comm.receive(comm.rank_at(-distance), nullptr, 0));
  }
  return comm.flush();
}

// After round k every rank has heard of k ranks on either side.
Outcome around(Comm& comm) {
  for (int round = 0; round < comm.size() / 2; ++round) {
    SF_TRY(comm.send(comm.rank_at(+1), nullptr, 0));
    SF_TRY(comm.send(comm.rank_at(-1), nullptr, 0));
    SF_TRY(comm.receive(comm.rank_at(-1), nullptr, 0));
    SF_TRY(comm.receive(comm.rank_at(+1), nullptr, 0));
  }
  return comm.flush();
}

}  // namespace

Outcome barrier(Comm& comm, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kDirect: return one_round(comm);
    case Algorithm::kTwoPhase: return dissemination(comm);
    case Algorithm::kRing: return around(comm);
  }
  return Outcome::kOk;
}

}  // namespace standfast
