// Whole groups of machines in virtual time: links that delay but keep order, processes that die,
// leave or end after an error, and broken wires, all from one seed. A failure prints the seed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/control/machine.h"

namespace standfast {
namespace {

using Kind = VerdictKind;

constexpr std::uint64_t kEventsMax = 100'000;

// What a run's one fault is.
enum class Fault {
  kNone,
  kKill,          // a process ends without a word
  kInterrupt,     // it says so, then ends
  kAwaitedLeave,  // it leaves in good order while others wait for it
  kBrokenWire,    // between two ranks that are both well
  kException,
  kAbort,
  kMismatch,
};

struct Finding {
  Kind kind;
  int rank;
  Nanos at;
};

class Simulation {
 public:
  Simulation(std::uint64_t seed, Nanos delay_max) : random_(seed) {
    size_ = 2 + pick(5);
    delay_max_ = 1 + static_cast<Nanos>(random_() % static_cast<std::uint64_t>(delay_max));
    for (int rank = 0; rank < size_; ++rank) {
      nodes_.push_back({Machine({rank, size_, 1}), pick(3)});
    }
  }

  int size() const { return size_; }
  int pick(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  int pick_other(int rank) { return (rank + 1 + pick(size_ - 1)) % size_; }
  Nanos delay() {
    return static_cast<Nanos>(random_() % static_cast<std::uint64_t>(delay_max_ + 1));
  }
  void at(Nanos time, std::function<void()> act) { agenda_.push({time, ++order_, std::move(act)}); }

  // Runs until nothing happens any more.
  void run() {
    while (!agenda_.empty()) {
      Item item = agenda_.top();
      agenda_.pop();
      if (item.at < now_ || order_ > kEventsMax) FAIL("time runs backwards, or never ends");
      now_ = item.at;
      item.act();
    }
  }

  // --- what can happen to a rank

  void kill(int rank) {
    if (!nodes_[at_index(rank)].runs) return;
    nodes_[at_index(rank)].runs = false;
    for (const int peer : links_of(rank)) send_end(rank, peer);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank && is_same_host(rank, peer)) {
        at(now_ + delay(), [=, this] { see_process_end(peer, rank); });
      }
    }
  }

  void interrupt(int rank) {
    for (const int peer : links_of(rank)) send(rank, peer, goodbye(rank, Kind::kLeft));
    at(now_ + delay(), [=, this] { kill(rank); });
  }

  // As the watch does it: a goodbye, a bounded wait for rank 0's answer (or, at rank 0, for all
  // others), then the process ends.
  void leave(int rank, Nanos linger) {
    Node& node = nodes_[at_index(rank)];
    if (!node.runs || node.finding.kind != Kind::kNone) return;
    node.leaves = true;
    for (const int peer : links_of(rank)) send(rank, peer, goodbye(rank, Kind::kNone));
    Event leaving = goodbye(rank, Kind::kNone);
    leaving.kind = Event::Kind::kLeaving;
    if (rank == 0) step(rank, leaving);
    const Nanos patience = rank == 0 ? linger : 250 * kMillisecond;
    at(now_ + patience + delay(), [=, this] { kill(rank); });
  }

  // What it sees of a peer by itself.
  void report(int rank, Kind kind, int about, bool suspicion = false) {
    Event event;
    event.kind = Event::Kind::kLocal;
    event.frame.type = FrameType::kReport;
    event.frame.generation = 1;
    event.frame.suspicion = suspicion;
    event.frame.verdict.kind = kind;
    event.frame.verdict.rank = about;
    event.frame.verdict.reporter = rank;
    step(rank, event);
  }

  // Some of the others wait for this rank just now, and see its wire end.
  void break_wires_to(int rank, Kind kind = Kind::kLinkLost) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank || pick(2) == 0) continue;
      at(now_ + delay(), [=, this] { report(peer, kind, rank, kind == Kind::kLinkLost); });
    }
  }

  bool survives(int rank) const {
    const Node& node = nodes_[at_index(rank)];
    return !node.leaves && !node.is_culprit;
  }
  void blame(int rank) { nodes_[at_index(rank)].is_culprit = true; }
  // These are at work to the end.
  void keep(int rank) { nodes_[at_index(rank)].stays = true; }
  bool may_leave(int rank) const { return survives(rank) && !nodes_[at_index(rank)].stays; }
  const Finding& finding(int rank) const { return nodes_[at_index(rank)].finding; }
  Nanos now() const { return now_; }
  Nanos delay_max() const { return delay_max_; }

  std::string trace() const {
    std::string text;
    for (const Node& node : nodes_) {
      text += std::string(verdict_name(node.finding.kind)) + " " +
              std::to_string(node.finding.rank) + " " + std::to_string(node.finding.at) + "\n";
    }
    return text + std::to_string(order_);
  }

 private:
  struct Node {
    Machine machine;
    int host;
    bool runs = true;
    bool leaves = false;
    bool is_culprit = false;
    bool stays = false;
    Finding finding{Kind::kNone, -1, kNever};
  };
  // One direction of a control link: what is on its way.
  struct Line {
    std::deque<Event> events;
    Nanos last = 0;
    bool is_open = true;  // at the receiver
  };
  struct Item {
    Nanos at;
    std::uint64_t order;
    std::function<void()> act;
    bool operator<(const Item& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  static std::size_t at_index(int rank) { return static_cast<std::size_t>(rank); }
  bool is_same_host(int a, int b) const {
    return nodes_[at_index(a)].host == nodes_[at_index(b)].host;
  }
  std::vector<int> links_of(int rank) const {
    if (rank != 0) return {0};
    std::vector<int> all;
    for (int peer = 1; peer < size_; ++peer) all.push_back(peer);
    return all;
  }
  static Event goodbye(int rank, Kind kind) {
    Event event;
    event.kind = Event::Kind::kFrame;
    event.rank = rank;
    event.frame.type = FrameType::kGoodbye;
    event.frame.generation = 1;
    event.frame.verdict.kind = kind;
    event.frame.verdict.rank = rank;
    return event;
  }

  // Ends are no news to who said goodbye; rank 0 stays coordinator.
  bool has_gone_home(int rank) const { return rank != 0 && nodes_[at_index(rank)].leaves; }

  void send(int from, int to, Event event) {
    event.rank = from;
    Line& line = lines_[{from, to}];
    line.events.push_back(std::move(event));
    line.last = std::max(line.last, now_ + delay());
    at(line.last, [=, this] { deliver_next(from, to); });
  }
  void send_end(int from, int to) {
    Event event;
    event.kind = Event::Kind::kLinkEnded;
    event.text = "closed without goodbye";
    send(from, to, std::move(event));
  }
  void deliver_next(int from, int to) {
    Line& line = lines_[{from, to}];
    if (line.events.empty()) return;
    Event event = std::move(line.events.front());
    line.events.pop_front();
    if (!line.is_open) return;
    if (event.kind == Event::Kind::kLinkEnded) line.is_open = false;
    if (line.is_open || !has_gone_home(to)) step(to, event);
    const bool says_goodbye =
        event.kind == Event::Kind::kFrame && event.frame.type == FrameType::kGoodbye;
    if (!says_goodbye || to != 0 || !line.is_open) return;
    line.is_open = false;  // rank 0 closes the link: the goodbye was heard
    send_end(0, from);
    step(0, {Event::Kind::kLinkEnded, from, {}, "closed after goodbye"});
  }
  void see_process_end(int at_rank, int gone) {
    while (!lines_[{gone, at_rank}].events.empty()) deliver_next(gone, at_rank);
    if (!has_gone_home(at_rank))
      step(at_rank, {Event::Kind::kProcessGone, gone, {}, "its process ended"});
  }

  void step(int rank, const Event& event) {
    Node& node = nodes_[at_index(rank)];
    if (!node.runs) return;
    Actions actions = node.machine.step(event, now_);
    if (actions.verdict) {
      if (node.finding.kind != Kind::kNone) FAIL("a second verdict");
      node.finding = {actions.verdict->kind, actions.verdict->rank, now_};
    }
    for (auto& [to, frame] : actions.sends) {
      Event sent;
      sent.kind = Event::Kind::kFrame;
      sent.frame = std::move(frame);
      if (lines_[{to, rank}].is_open) send(rank, to, std::move(sent));
    }
    if (actions.verdict) {
      // The error ends the program, which says no goodbye; its peers see its wires end.
      at(now_ + delay(), [=, this] {
        if (!nodes_[at_index(rank)].runs) return;
        kill(rank);
        if (!nodes_[at_index(rank)].leaves) break_wires_to(rank);
      });
    }
    const Nanos wakes_at = node.machine.wakes_at();
    if (wakes_at != kNever) at(std::max(now_, wakes_at), [=, this] { tick(rank, wakes_at); });
  }
  // A tick that was asked for and is still wanted.
  void tick(int rank, Nanos asked) {
    if (nodes_[at_index(rank)].machine.wakes_at() == asked) step(rank, {});
  }

  std::mt19937_64 random_;
  int size_ = 0;
  Nanos delay_max_ = 0;
  Nanos now_ = 0;
  std::uint64_t order_ = 0;
  std::vector<Node> nodes_;
  std::map<std::pair<int, int>, Line> lines_;
  std::priority_queue<Item> agenda_;
};

// The fault, and what all survivors have to say about it. rank -1: one of two, but all the same.
struct Expected {
  Kind kind;
  int rank;
  Kind or_kind = kind;
};

Expected plan(Simulation& simulation, Fault fault, Nanos when) {
  if (fault == Fault::kNone) return {Kind::kNone, -1};
  Simulation& s = simulation;
  const int rank = s.pick(s.size());
  const int other = s.pick_other(rank);
  const auto report_later = [&s](int who, Kind kind, int about, bool suspicion = false) {
    s.at(s.now() + s.delay(), [=, &s] { s.report(who, kind, about, suspicion); });
  };
  // On a slow network the news of its end, by a neighbour, may outrun its last words.
  const Kind outruns = s.delay_max() > Machine::kLastWordsGrace / 2 ? Kind::kDied : Kind::kNone;
  s.keep(rank);
  s.keep(other);
  switch (fault) {
    case Fault::kNone: return {Kind::kNone, -1};
    case Fault::kKill:
      s.blame(rank);
      s.at(when, [&s, rank] { s.kill(rank), s.break_wires_to(rank); });
      return {Kind::kDied, rank};
    case Fault::kInterrupt:
      s.blame(rank);
      s.at(when, [&s, rank] { s.interrupt(rank), s.break_wires_to(rank); });
      return {Kind::kLeft, rank, outruns};
    case Fault::kAwaitedLeave:
      s.blame(rank);
      s.at(when, [&s, rank, other] {
        s.leave(rank, 2 * kSecond);
        s.break_wires_to(rank, Kind::kLeft);
        s.break_wires_to(rank, Kind::kLinkLost);  // who sends to it sees no more than that
        s.at(s.now() + s.delay(), [&s, rank, other] { s.report(other, Kind::kLeft, rank); });
      });
      return {Kind::kLeft, rank};
    case Fault::kBrokenWire:
      s.at(when, [=] {
        report_later(rank, Kind::kLinkLost, other, true);
        report_later(other, Kind::kLinkLost, rank, true);
      });
      return {Kind::kLinkLost, -1};
    case Fault::kException:
      s.blame(rank);
      s.at(when, [&s, rank] {
        s.report(rank, Kind::kFailed, rank);
        s.at(s.now() + s.delay(), [&s, rank] { s.kill(rank), s.break_wires_to(rank); });
      });
      return {Kind::kFailed, rank, outruns};
    case Fault::kAbort:
      s.at(when, [&s, rank] { s.report(rank, Kind::kAborted, rank); });
      return {Kind::kAborted, rank};
    case Fault::kMismatch:
      s.at(when, [=] {
        report_later(rank, Kind::kMismatch, other);
        report_later(other, Kind::kMismatch, rank);
      });
      return {Kind::kMismatch, -1};
  }
  return {Kind::kNone, -1};
}

// Some ranks leave in good order, before or after `when`; rank 0 only if it may.
void plan_leavers(Simulation& simulation, Nanos when, bool with_rank_0) {
  for (int rank = with_rank_0 ? 0 : 1; rank < simulation.size(); ++rank) {
    if (simulation.pick(3) != 0 || !simulation.may_leave(rank)) continue;
    const Nanos linger = simulation.pick(3) * kSecond;
    simulation.at(when / 2 + simulation.delay() * 5,
                  [=, &simulation] { simulation.leave(rank, linger); });
  }
}

// What links and watches may take where one verdict is promised: a report and its answer fit twice
// into the difference of the machine's graces. And where no fault may ever be seen: a goodbye that
// sets out before a process ends comes within a grace of the news of that end.
constexpr Nanos kPrompt = (Machine::kAnswerGrace - Machine::kReasonGrace) / 2 - kMillisecond;
constexpr Nanos kSlow = Machine::kReasonGrace;
constexpr Nanos kQuick = Machine::kLastWordsGrace / 2;
constexpr Nanos kWhen = 500 * kMillisecond;
// Link delays both ways, a grace, and the ends in between.
constexpr Nanos kBound = kWhen + 1 * kSecond;

void check(const Simulation& simulation, const Expected& expected) {
  int named = expected.rank;
  for (int rank = 0; rank < simulation.size(); ++rank) {
    const Finding& finding = simulation.finding(rank);
    if (!simulation.survives(rank)) continue;
    INFO("rank ", rank, " found: ", std::string(verdict_name(finding.kind)), " of rank ",
         finding.rank);
    if (named < 0) named = finding.rank;
    const bool is_in_time = expected.kind == Kind::kNone || finding.at <= kBound;
    const bool is_kind = finding.kind == expected.kind || finding.kind == expected.or_kind;
    CHECK((is_kind && finding.rank == named && is_in_time));
  }
}

void run_seeds(Fault fault, bool with_leavers, std::uint64_t runs) {
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    INFO("seed ", seed, ", fault ", static_cast<int>(fault));
    const Nanos delay = fault == Fault::kNone ? kSlow : seed % 2 == 0 ? kPrompt : kQuick;
    Simulation simulation(seed, delay);
    const Expected expected = plan(simulation, fault, kWhen);
    if (with_leavers) plan_leavers(simulation, kWhen, fault == Fault::kNone);
    simulation.run();
    check(simulation, expected);
  }
}

constexpr std::uint64_t kRuns = 300;
constexpr Fault kFaults[] = {Fault::kKill,       Fault::kInterrupt, Fault::kAwaitedLeave,
                             Fault::kBrokenWire, Fault::kException, Fault::kAbort,
                             Fault::kMismatch};

}  // namespace

// With one fault, every survivor gets a verdict within a second, and all name the same rank and
// kind, whatever the ends of other ranks that follow from it look like.
TEST_CASE("machine simulation: one fault, one verdict") {
  for (const Fault fault : kFaults) run_seeds(fault, false, kRuns);
}

// Ranks that leave in good order meanwhile are never blamed for the fault.
TEST_CASE("machine simulation: a fault among leavers") {
  for (const Fault fault : kFaults) run_seeds(fault, true, kRuns);
}

// Where everybody leaves in good order, in any order and at any pace, nobody hears of an error.
TEST_CASE("machine simulation: leaving is no fault") { run_seeds(Fault::kNone, true, 4 * kRuns); }

// The same seed is the same run, or a printed seed would be worth nothing.
TEST_CASE("machine simulation: a seed tells the whole run") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    std::string traces[2];
    for (std::string& trace : traces) {
      Simulation simulation(seed, kPrompt);
      plan(simulation, Fault::kKill, kWhen);
      plan_leavers(simulation, kWhen, false);
      simulation.run();
      trace = simulation.trace();
    }
    CHECK(traces[0] == traces[1]);
  }
}

}  // namespace standfast
