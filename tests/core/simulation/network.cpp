// Control links as TCP makes them: nothing is lost or out of order while the path lives; what meets
// a dead path waits, and comes some time after it is mended.
#include <algorithm>

#include "tests/core/simulation/world.h"

namespace standfast::simulation {
namespace {

constexpr Nanos kUnansweredMin = 20 * kSecond;
constexpr int kUnkindOneIn = 50;

bool may_be_moved(const Event& event) {
  return event.kind == Event::Kind::kFrame && event.frame.type != FrameType::kGoodbye &&
         event.frame.type != FrameType::kLeft;
}

}  // namespace

void World::send(int from, int to, Event event) {
  Line& path = line(from, to);
  if (!path.is_open) return;
  event.rank = from;
  const Nanos arrives = std::max(path.last, now_ + random.span(plan_.delay / 4, plan_.delay));
  path.last = arrives;
  path.acked_at = arrives + random.span(plan_.delay / 4, plan_.delay);
  const bool is_moved = plan_.is_unkind && may_be_moved(event);
  if (is_moved && random.one_in(kUnkindOneIn)) {  // it comes twice
    path.flights.push_back({arrives, event});
    push(arrives, What::kDeliver, from, to);
  }
  path.flights.push_back({arrives, std::move(event)});
  push(arrives, What::kDeliver, from, to);
  const std::size_t count = path.flights.size();
  if (is_moved && count > 1 && may_be_moved(path.flights[count - 2].event) &&
      random.one_in(kUnkindOneIn)) {
    std::swap(path.flights[count - 2].event, path.flights[count - 1].event);
  }
}

void World::end_links(int rank, Nanos late) {
  const int first = rank == 0 ? 1 : 0;
  for (int peer = first; peer < (rank == 0 ? size() : 1); ++peer) {
    at(now_ + late, [this, rank, peer] {
      Event event;
      event.kind = Event::Kind::kLinkEnded;
      event.text = "closed without goodbye";
      send(rank, peer, std::move(event));
    });
  }
}

void World::deliver(int from, int to) {
  Line& path = line(from, to);
  if (path.flights.empty() || path.flights.front().at > now_ || path.stalled_since != kNever)
    return;
  if (is_cut(from, to)) {
    path.stalled_since = now_;
    push(now_ + std::max(plan_.limits.silence, kUnansweredMin), What::kExpire, from, to);
    return;
  }
  Event event = std::move(path.flights.front().event);
  path.flights.pop_front();
  if (!path.is_open) return;
  if (event.kind == Event::Kind::kLinkEnded) path.is_open = line(to, from).is_open = false;
  hear(to, std::move(event));
}

// On a host of its own nothing is on its way for long: what was said is there to be read.
void World::drain(int from, int to) {
  Line& path = line(from, to);
  while (!path.flights.empty() && path.is_open && path.stalled_since == kNever) {
    path.flights.front().at = now_;
    const std::size_t before = path.flights.size();
    deliver(from, to);
    if (path.flights.size() == before) return;
  }
}

void World::cut(const std::vector<bool>& side, bool data) {
  side_ = side;
  cuts_data_ = data;
}

// What waited is sent again after up to as long as the path was dead: senders back off.
void World::heal() {
  for (int rank = 1; rank < size(); ++rank) {
    for (const auto& [from, to] : {std::pair{0, rank}, std::pair{rank, 0}}) {
      Line& path = line(from, to);
      if (path.stalled_since == kNever) continue;
      const Nanos again = now_ + random.span(0, now_ - path.stalled_since);
      path.stalled_since = kNever;
      path.last = std::max(path.last, again);
      path.acked_at = path.last + plan_.delay;
      for (Flight& flight : path.flights) {
        flight.at = std::max(flight.at, again);
        push(flight.at, What::kDeliver, from, to);
      }
      node(rank).troubled_until = std::max(node(rank).troubled_until, again + plan_.limits.hint);
    }
  }
  side_.clear();
  release_all();
}

void World::expire(int from, int to) {
  Line& path = line(from, to);
  const Nanos span = std::max(plan_.limits.silence, kUnansweredMin);
  if (path.stalled_since == kNever || now_ - path.stalled_since < span || !path.is_open) return;
  path.is_open = false;
  Event event;
  event.kind = Event::Kind::kLinkExpired;
  event.rank = to;
  event.text = "broke: recv: ETIMEDOUT";
  hear(from, std::move(event));
}

void World::hear(int rank, Event event) {
  Node& here = node(rank);
  if (!here.runs) return;
  if (now_ < here.watch_sleeps_until) {
    here.backlog.push_back(std::move(event));
    return;
  }
  const Verdict& said = event.frame.verdict;
  const bool says_died = event.kind == Event::Kind::kFrame && rank == 0 && event.frame.suspicion &&
                         said.kind == VerdictKind::kDied;
  if (says_died && said.rank != 0 && host_of(said.rank) == host_of(0)) {
    drain(said.rank, 0);
    event.drained = true;
  }
  step(rank, event);
}

void World::see_end(int at_rank, int gone) {
  if (at_rank == 0) drain(gone, 0);
  if (gone == 0) drain(0, at_rank);
  Event event;
  event.kind = Event::Kind::kProcessGone;
  event.rank = gone;
  event.text = "its process is ending: its beacon was passed on";
  hear(at_rank, std::move(event));
}

}  // namespace standfast::simulation
