// Machines, time, and what can happen to a rank.
#include "tests/core/simulation/world.h"

#include <algorithm>

namespace standfast::simulation {

World::World(const Plan& plan)
    : random(plan.seed), plan_(plan), lines_(2 * static_cast<std::size_t>(plan.size)) {
  for (int rank = 0; rank < size(); ++rank) {
    Node made(Machine({rank, size(), 1}, plan.limits));
    made.sights.resize(index(size()));
    made.hint_at.assign(index(size()), kNever);
    nodes_.push_back(std::move(made));
  }
  for (int rank = 0; rank < size(); ++rank) {
    node(rank).tick_at = now_ + random.span(0, plan.limits.heartbeat / 4);
    push(node(rank).tick_at, What::kTick, rank, 0, static_cast<std::uint64_t>(node(rank).tick_at));
    compute(rank);
  }
}

void World::push(Nanos when, What what, int a, int b, std::uint64_t ticket) {
  agenda_.push({when, ++order_, what, a, b, ticket});
}

void World::at(Nanos time, std::function<void()> act) {
  push(time, What::kAct, 0, 0, order_ + 1);
  acts_[order_] = std::move(act);
}

void World::run_until(Nanos end) {
  while (!agenda_.empty() && agenda_.top().at <= end) {
    const Item item = agenda_.top();
    agenda_.pop();
    now_ = item.at;
    switch (item.what) {
      case What::kTick: tick(item.a, static_cast<Nanos>(item.ticket)); break;
      case What::kDeliver: deliver(item.a, item.b); break;
      case What::kArrive: arrive(item.a); break;
      case What::kFinish: finish(item.a, item.ticket); break;
      case What::kResume: resume(item.a); break;
      case What::kExpire: expire(item.a, item.b); break;
      case What::kAct: {
        const auto act = std::move(acts_.at(item.ticket));
        acts_.erase(item.ticket);
        act();
        break;
      }
    }
  }
  now_ = std::max(now_, end);
}

void World::kill(int rank, Nanos late, bool beacon) {
  if (!node(rank).runs) return;
  node(rank).runs = false;
  end_links(rank, late);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank || host_of(peer) != host_of(rank)) continue;
    const Nanos seen = beacon ? random.span(50 * kMicrosecond, 1 * kMillisecond) : late;
    at(now_ + seen, [this, peer, rank] { see_end(peer, rank); });
  }
  if (beacon) tell_by_sentinel(rank);
  const auto is_wired = [&](int peer) { return peer != rank && node(peer).runs; };
  for (const int peer : {left_of(rank), (rank + 1) % size()}) {
    if (!is_wired(peer)) continue;
    at(now_ + late + random.span(0, plan_.delay), [this, peer, rank] {
      if (node(peer).doing == Doing::kWaiting && !is_data_cut(peer, rank)) {
        say(peer, VerdictKind::kLinkLost, rank);
      }
    });
  }
}

// Ranks of other hosts hear of rank 0's end, and rank 0 of one that was alone on its host.
void World::tell_by_sentinel(int rank) {
  Event event;
  event.kind = Event::Kind::kFrame;
  event.frame.generation = 1;
  event.frame.type = rank == 0 ? FrameType::kVerdict : FrameType::kReport;
  event.frame.verdict.kind = VerdictKind::kDied;
  event.frame.verdict.rank = event.frame.verdict.reporter = rank;
  bool is_alone = true;
  for (int peer = 0; peer < size(); ++peer) {
    is_alone &= peer == rank || host_of(peer) != host_of(rank);
    if (rank == 0 && host_of(peer) != host_of(0)) send(0, peer, event);
  }
  if (rank != 0 && is_alone) send(rank, 0, event);
}

void World::freeze(int rank, Nanos span) {
  Node& frozen = node(rank);
  frozen.program_sleeps_until = std::max(frozen.program_sleeps_until, deadline_after(now_, span));
  delay_watch(rank, span);
}

void World::delay_watch(int rank, Nanos span) {
  Node& late = node(rank);
  late.watch_sleeps_until = std::max(late.watch_sleeps_until, deadline_after(now_, span));
  late.troubled_until = std::max(late.troubled_until, late.watch_sleeps_until);
  if (late.watch_sleeps_until != kNever) push(late.watch_sleeps_until, What::kResume, rank);
}

void World::wedge(int rank, bool inside) {
  node(rank).wedges = true;
  node(rank).wedges_inside = inside;
}

void World::embrace(int a, int b) {
  node(a).embraces = b;
  node(b).embraces = a;
}

void World::vanish(int rank) {
  std::vector<bool> side(index(size()));
  for (int peer = 0; peer < size(); ++peer) {
    if (host_of(peer) != host_of(rank)) continue;
    side[index(peer)] = true;
    node(peer).runs = false;
  }
  cut(side, true);
}

void World::say(int rank, VerdictKind kind, int about) {
  Event event;
  event.kind = Event::Kind::kLocal;
  event.rank = rank;
  event.frame.type = FrameType::kReport;
  event.frame.generation = 1;
  event.frame.suspicion = kind == VerdictKind::kLinkLost;
  event.frame.verdict.kind = kind;
  event.frame.verdict.rank = about;
  event.frame.verdict.reporter = rank;
  hear(rank, std::move(event));
}

void World::forget_hints() {
  for (Node& each : nodes_) std::fill(each.hint_at.begin(), each.hint_at.end(), kNever);
}

void World::resume(int rank) {
  Node& woken = node(rank);
  if (!woken.runs || now_ < woken.watch_sleeps_until) return;
  std::vector<Event> backlog;
  backlog.swap(woken.backlog);
  for (const Event& event : backlog) step(rank, event);
  if (woken.tick_at <= now_) {
    woken.tick_at = kNever;
    tick(rank, kNever);
  }
  release_all();
}

// As the watch's thread does it: a look at the world where the machine wants one.
void World::tick(int rank, Nanos asked) {
  Node& here = node(rank);
  if (!here.runs || here.tick_at != asked || now_ < here.watch_sleeps_until) return;
  here.tick_at = kNever;
  Event event;
  if (here.machine.is_review_due(now_)) {
    const bool is_first = rank != 0;
    for (int peer = is_first ? 0 : 1; peer < (is_first ? 1 : size()); ++peer) {
      const Line& to = line(rank, peer);
      const bool acknowledged = to.stalled_since == kNever && to.acked_at <= now_;
      if (to.is_open && acknowledged) here.sights[index(peer)].acked_at = now_;
    }
    if (here.data_came) here.sights[index(left_of(rank))].data_at = now_;
    for (int peer = 0; here.data_came && plan_.is_mesh && peer < size(); ++peer) {
      if (!is_data_cut(rank, peer)) here.sights[index(peer)].data_at = now_;
    }
    here.data_came = false;
    event.frame.status = status_of(rank);
    event.sights = &here.sights;
  }
  step(rank, event);
}

void World::step(int rank, const Event& event) {
  Node& here = node(rank);
  if (!here.runs) return;
  ++steps_;
  note(static_cast<std::uint64_t>(now_) ^ index(rank) << 48 ^
       static_cast<std::uint64_t>(event.kind) << 60);
  act_on(rank, here.machine.step(event, now_));
  schedule_tick(rank);
}

void World::schedule_tick(int rank) {
  Node& here = node(rank);
  const Nanos wakes_at = here.machine.wakes_at();
  if (wakes_at == kNever || here.tick_at <= std::max(wakes_at, now_)) return;
  // Threads wake a little late.
  here.tick_at = std::max(wakes_at, now_) + random.span(0, 200 * kMicrosecond);
  push(here.tick_at, What::kTick, rank, 0, static_cast<std::uint64_t>(here.tick_at));
}

void World::act_on(int rank, Actions actions) {
  Node& here = node(rank);
  note(actions.sends.size());
  for (auto& [to, frame] : actions.sends) {
    note(static_cast<std::uint64_t>(frame.type) << 32 ^ index(to));
    Event event;
    event.kind = Event::Kind::kFrame;
    event.frame = std::move(frame);
    send(rank, to, std::move(event));
  }
  for (const Hint& hint : actions.hints) note_hint(rank, hint);
  if (!actions.verdict) return;
  note(static_cast<std::uint64_t>(actions.verdict->kind) << 32 ^ index(actions.verdict->rank));
  here.finding = {actions.verdict->kind, actions.verdict->rank, now_};
  // The error ends most programs, which say no goodbye.
  if (random.one_in(3)) return;
  at(now_ + random.span(0, 50 * kMillisecond), [this, rank] {
    if (now_ >= node(rank).program_sleeps_until) kill(rank, random.span(0, kMillisecond), true);
  });
}

void World::note_hint(int rank, const Hint& hint) {
  note(static_cast<std::uint64_t>(hint.kind) << 40 ^ index(hint.rank));
  Nanos& first = node(rank).hint_at[index(hint.rank)];
  first = std::min(first, now_);
  const bool is_progress = hint.kind == HintKind::kLate || hint.kind == HintKind::kWedged;
  if (is_progress || rank != hint.reporter) return;
  const Node& accused = node(hint.rank);
  // What is said after the trouble is on its way for a moment.
  const Nanos before = now_ - 2 * plan_.delay - kMillisecond;
  const bool hid = !accused.runs || before < accused.troubled_until ||
                   before < node(rank).troubled_until || is_cut(rank, hint.rank);
  if (!hid) {
    false_hints_.push_back("rank " + std::to_string(rank) + " of rank " +
                           std::to_string(hint.rank) + " at " + std::to_string(now_));
  }
}

}  // namespace standfast::simulation
