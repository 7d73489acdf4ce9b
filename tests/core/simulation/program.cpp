// What the ranks' programs do: compute, then meet in an operation. Three of four are collectives
// that nobody ends before everybody came, waiting for the left neighbour as rings do; the fourth is
// a message from the left neighbour.
#include <algorithm>

#include "tests/core/simulation/world.h"

namespace standfast::simulation {

Tag World::tag_of(const Node& here) const {
  const bool collective = is_collective(here.arrived);
  Tag tag;
  tag.kind = collective ? OpKind::kAllReduce : OpKind::kSend;
  tag.seq = collective ? here.collectives : here.messages;
  tag.dtype = DType::kFloat32;
  tag.count = 1024;
  return tag;
}

Status World::status_of(int rank) const {
  const Node& here = node(rank);
  Status status;
  status.started = here.collectives;
  status.finished = here.collectives_finished;
  status.digest = here.digest;
  if (here.arrived == 0) return status;
  status.halves[0].tag = tag_of(here);
  status.halves[0].running = here.doing == Doing::kWaiting || here.doing == Doing::kMoving ||
                             (here.doing == Doing::kNothing && here.wedges_inside);
  if (here.doing == Doing::kWaiting) {
    status.halves[0].waiting_for = here.embraces >= 0 ? here.embraces : left_of(rank);
    status.halves[0].waited = now_ - here.waits_since;
  }
  return status;
}

void World::compute(int rank) {
  node(rank).doing = Doing::kComputing;
  push(now_ + random.span(plan_.compute / 8, plan_.compute), What::kArrive, rank);
}

void World::arrive(int rank) {
  Node& here = node(rank);
  if (!here.runs || here.finding.kind != VerdictKind::kNone) return;
  if (now_ < here.program_sleeps_until) {
    if (here.program_sleeps_until != kNever) push(here.program_sleeps_until, What::kArrive, rank);
    return;
  }
  if (here.wedges && !here.wedges_inside) {
    here.doing = Doing::kNothing;
    return;
  }
  ++here.arrived;
  if (arrivals_.size() <= here.arrived) arrivals_.resize(here.arrived + 1);
  ++arrivals_[here.arrived];
  if (is_collective(here.arrived)) {
    ++here.collectives;
    here.digest = digest_after(here.digest, tag_of(here));
  } else {
    ++here.messages;
  }
  here.waits_since = now_;
  here.doing = here.wedges ? Doing::kNothing : Doing::kWaiting;
  if (!is_collective(here.arrived)) {
    release(rank);
    release((rank + 1) % size());
  } else if (arrivals_[here.arrived] == size()) {
    release_all();
  }
}

// Nobody ends a collective before all came, and while somebody does not move.
bool World::all_move() const {
  if (cuts_data_ && !side_.empty()) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& each) {
    return each.runs && each.doing != Doing::kNothing && each.embraces < 0 &&
           now_ >= each.program_sleeps_until;
  });
}

// A message from the left neighbour is there.
bool World::has_message(int rank) const {
  const int left = left_of(rank);
  return node(rank).embraces < 0 && !is_data_cut(rank, left) &&
         node(left).arrived >= node(rank).arrived;
}

void World::release(int rank) {
  Node& here = node(rank);
  if (here.doing != Doing::kWaiting || is_collective(here.arrived) || !has_message(rank)) return;
  move(rank);
}

void World::release_all() {
  const bool can = all_move();
  for (int rank = 0; rank < size(); ++rank) {
    const Node& here = node(rank);
    if (here.doing != Doing::kWaiting) continue;
    if (!is_collective(here.arrived)) {
      release(rank);
    } else if (can && arrivals_[here.arrived] == size()) {
      move(rank);
    }
  }
}

void World::move(int rank) {
  Node& here = node(rank);
  here.doing = Doing::kMoving;
  push(now_ + random.span(plan_.delay / 4, plan_.delay), What::kFinish, rank, 0, here.arrived);
}

void World::finish(int rank, std::uint64_t operation) {
  Node& here = node(rank);
  if (!here.runs || here.arrived != operation || here.doing != Doing::kMoving) return;
  if (now_ < here.program_sleeps_until) {
    if (here.program_sleeps_until != kNever) {
      push(here.program_sleeps_until, What::kFinish, rank, 0, operation);
    }
    return;
  }
  here.finished = here.arrived;
  if (is_collective(here.arrived)) here.collectives_finished = here.collectives;
  here.data_came = true;
  compute(rank);
}

Nanos World::waiting_since() const {
  Nanos first = kNever;
  for (const Node& each : nodes_) {
    if (each.runs && each.doing == Doing::kWaiting) first = std::min(first, each.waits_since);
  }
  return first;
}

}  // namespace standfast::simulation
