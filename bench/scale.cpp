// The plan for groups that are too large for one star: a tree of agents. Each agent is rank 0 of a
// star of at most `fan` (its children), and a child in the star above; the leaves are ranks. Each
// star is the machine as it is; what one star decides, its agents report or tell in the next one.
// Measured in virtual time: how long until every rank has the verdict of a death, and what each
// node sends and receives meanwhile. The star of each level is simulated whole, with all its
// machines; the way up and down the tree is put together from them.
//   g++ -std=c++20 -O2 -I. bench/scale.cpp core/control/{machine,review,blame}.cpp \
//     core/base/tag.cpp -o /tmp/scale && /tmp/scale
// Arguments: [children of each agent, from the top: default 64 64 25].
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/control/machine.h"

namespace {

using namespace standfast;

constexpr WatchLimits kLimits = {.heartbeat = 500 * kMillisecond,
                                 .hint = 3 * kSecond,
                                 .silence = 20 * kSecond,
                                 .progress = 600 * kSecond};
// One way, with the watch's thread waking up.
constexpr Nanos kHopLeast = 50 * kMicrosecond;
constexpr Nanos kHopMost = 500 * kMicrosecond;
// What a node needs for each frame that it sends, one after the other.
constexpr Nanos kSend = 10 * kMicrosecond;

class Random {
 public:
  Nanos hop() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return kHopLeast + static_cast<Nanos>((state_ >> 33) % (kHopMost - kHopLeast));
  }

 private:
  std::uint64_t state_ = 1;
};

// One star in a run of its own: rank 0 is the agent.
struct Star {
  explicit Star(int children) {
    for (int rank = 0; rank <= children; ++rank) {
      machines.push_back(Machine({rank, children + 1, 1}, kLimits));
    }
  }

  struct Arrival {
    Nanos at;
    int to;
    Event event;
    bool operator<(const Arrival& other) const { return at > other.at; }
  };

  void send_all(int from, Actions actions, Nanos now) {
    Nanos leaves = now;
    for (auto& [to, frame] : actions.sends) {
      leaves += kSend;
      ++sent[static_cast<std::size_t>(from)];
      Event event;
      event.kind = Event::Kind::kFrame;
      event.rank = from;
      event.frame = std::move(frame);
      heap.push_back({leaves + random.hop(), to, std::move(event)});
      std::push_heap(heap.begin(), heap.end());
    }
    if (actions.verdict) decided[static_cast<std::size_t>(from)] = now;
  }
  void tick(int rank, Nanos now) {
    std::vector<Sight> sights(machines.size());
    for (Sight& sight : sights) sight.acked_at = now;
    Event event;
    event.sights = &sights;
    send_all(rank, machines[static_cast<std::size_t>(rank)].step(event, now), now);
  }
  // Delivers and ticks until `end`; dead ranks do neither.
  void run(Nanos end, int dead) {
    for (;;) {
      Nanos next = heap.empty() ? kNever : heap.front().at;
      int ticks = -1;
      for (std::size_t rank = 0; rank < machines.size(); ++rank) {
        if (static_cast<int>(rank) == dead || machines[rank].wakes_at() >= next) continue;
        next = machines[rank].wakes_at();
        ticks = static_cast<int>(rank);
      }
      if (next > end) break;
      now = std::max(now, next);
      if (ticks >= 0) {
        tick(ticks, now);
        continue;
      }
      std::pop_heap(heap.begin(), heap.end());
      const Arrival arrival = std::move(heap.back());
      heap.pop_back();
      if (arrival.to == dead) continue;
      auto& machine = machines[static_cast<std::size_t>(arrival.to)];
      send_all(arrival.to, machine.step(arrival.event, now), now);
    }
    now = end;
  }
  void begin(Nanos at) {
    now = at;
    decided.assign(machines.size(), kNever);
    sent.assign(machines.size(), 0);
    for (std::size_t rank = 0; rank < machines.size(); ++rank) {
      tick(static_cast<int>(rank), at + static_cast<Nanos>(rank) * kMicrosecond);
    }
  }
  // The agent hears of a verdict from elsewhere, and tells its children.
  void hear(const Verdict& verdict, Nanos at) {
    now = std::max(now, at);
    Event event;
    event.kind = Event::Kind::kLocal;
    event.frame.generation = 1;
    event.frame.type = FrameType::kReport;
    event.frame.verdict = verdict;
    send_all(0, machines[0].step(event, now), now);
  }
  Nanos last() const {
    Nanos most = 0;
    for (const Nanos at : decided) {
      if (at != kNever) most = std::max(most, at);
    }
    return most;
  }

  std::vector<Machine> machines;
  std::vector<Arrival> heap;
  std::vector<Nanos> decided;
  std::vector<std::uint64_t> sent;
  Random random;
  Nanos now = 0;
};

struct Seen {
  Nanos at_agent;  // after the fault
  Nanos spread;    // from the agent's verdict to the last child's
  double frames;   // that the agent sends and receives in a second, all well
};

// A child of a star is lost: killed, or frozen.
Seen lose(int children, bool frozen) {
  Star star(children);
  star.begin(1 * kSecond);
  star.run(11 * kSecond, -1);
  std::uint64_t received = 0;
  for (std::size_t rank = 1; rank < star.sent.size(); ++rank) received += star.sent[rank];
  const double frames = static_cast<double>(star.sent[0] + received) / 10;
  const Nanos fault = star.now;
  const int lost = children / 2 + 1;
  if (!frozen) {
    Event event;
    event.kind = Event::Kind::kLinkEnded;
    event.rank = lost;
    event.text = "closed without goodbye";
    star.heap.push_back({fault + star.random.hop(), 0, event});
    std::push_heap(star.heap.begin(), star.heap.end());
  }
  star.run(fault + 25 * kSecond, lost);
  return {star.decided[0] - fault, star.last() - star.decided[0], frames};
}

// How long a star takes to hand a verdict on from its agent to its last child.
Nanos hand_on(int children) {
  Star star(children);
  star.begin(1 * kSecond);
  star.run(2 * kSecond, -1);
  Verdict verdict;
  verdict.kind = VerdictKind::kDied;
  verdict.rank = 0;
  star.hear(verdict, star.now);
  const Nanos told = star.now;
  star.run(told + kSecond, -1);
  return star.last() - told;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> fans;
  for (int i = 1; i < argc; ++i) fans.push_back(std::atoi(argv[i]));
  if (fans.empty()) fans = {64, 64, 25};
  double ranks = 1;
  for (const int fan : fans) ranks *= fan;
  std::printf("%.0f ranks\n", ranks);
  std::printf("level  children  frames/s at the agent\n");
  Random random;
  Nanos up = 0;
  Nanos down = 0;
  for (std::size_t level = 0; level < fans.size(); ++level) {
    const Seen seen = lose(fans[level], false);
    std::printf("%5zu  %8d  %8.0f\n", level, fans[level], seen.frames);
    if (level > 0) up += random.hop();
    down += hand_on(fans[level]);
  }
  for (const bool frozen : {false, true}) {
    const Seen seen = lose(fans.back(), frozen);
    std::printf(
        "a rank %s: its agent knows after %.3f ms, the top after %.3f ms, the last rank %.3f "
        "ms later\n",
        frozen ? "frozen" : "killed", to_seconds(seen.at_agent) * 1e3,
        to_seconds(seen.at_agent + up) * 1e3, to_seconds(down) * 1e3);
  }
  return 0;
}
