// A group of machines in virtual time: ranks whose programs compute and meet in operations, links
// that delay as TCP does, hosts, pauses, cuts and ends. One seed is one run. Nothing here knows
// what a machine ought to decide; the tests do.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/control/machine.h"

namespace standfast::simulation {

// The same numbers on every system, unlike the standard's distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }
  Nanos span(Nanos least, Nanos most) {
    return least + static_cast<Nanos>(next() % static_cast<std::uint64_t>(most - least + 1));
  }

 private:
  std::uint64_t state_;
};

struct Plan {
  std::uint64_t seed = 1;
  int size = 2;
  int hosts = 2;
  WatchLimits limits;
  Nanos delay = 1 * kMillisecond;      // most that a frame takes
  Nanos compute = 100 * kMillisecond;  // most that a program computes between operations
  bool is_unkind = false;              // frames come twice, or in another order
  bool is_mesh = false;                // a collective brings data from everybody, not only the left
};

struct Finding {
  VerdictKind kind = VerdictKind::kNone;
  int rank = -1;
  Nanos at = kNever;
};

class World {
 public:
  explicit World(const Plan& plan);

  Random random;
  const Plan& plan() const { return plan_; }
  int size() const { return plan_.size; }
  Nanos now() const { return now_; }
  std::uint64_t steps() const { return steps_; }
  // Of all that every machine was told and answered.
  std::uint64_t digest() const { return digest_; }

  void at(Nanos time, std::function<void()> act);
  void run_until(Nanos end);

  // --- what can happen
  // The process ends. Neighbours on its host see its beacon at once, if `beacon`; its links end
  // after `late`.
  void kill(int rank, Nanos late, bool beacon);
  // Neither the program nor the watch runs; the host does.
  void freeze(int rank, Nanos span);
  // Only the watch's thread is late.
  void delay_watch(int rank, Nanos span);
  // The program goes on with nothing, inside its next operation or before it.
  void wedge(int rank, bool inside);
  // No packet passes between ranks of unlike sides. `data`: on the data network as well.
  void cut(const std::vector<bool>& side, bool data);
  void heal();
  // No packet leaves or reaches this rank's host, and its processes are no more.
  void vanish(int rank);
  void say(int rank, VerdictKind kind, int about);  // as its own operations report it
  // These two wait for each other's message.
  void embrace(int a, int b);

  const Finding& finding(int rank) const { return node(rank).finding; }
  bool runs(int rank) const { return node(rank).runs; }
  int host_of(int rank) const { return rank * plan_.hosts / plan_.size; }
  // When this rank first heard of a suspicion of `about` at or after `since`, or kNever.
  Nanos hint_at(int rank, int about) const { return node(rank).hint_at[index(about)]; }
  void forget_hints();
  // When the first operation began that nobody has got over since, or kNever.
  Nanos waiting_since() const;
  std::uint32_t operations_done() const { return node(0).finished; }
  // Hints of silence about ranks of which nothing hid signs of life.
  const std::vector<std::string>& false_hints() const { return false_hints_; }

 private:
  enum class What : std::uint8_t { kTick, kDeliver, kArrive, kFinish, kResume, kExpire, kAct };
  struct Item {
    Nanos at;
    std::uint64_t order;
    What what;
    int a;
    int b;
    std::uint64_t ticket;
    bool operator<(const Item& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
  struct Flight {
    Nanos at;
    Event event;
  };
  // One direction of a control link: what is on its way, and whether the path is dead.
  struct Line {
    std::deque<Flight> flights;
    Nanos last = 0;
    Nanos acked_at = 0;  // when the sender has the last acknowledgement
    Nanos stalled_since = kNever;
    bool is_open = true;
  };
  enum class Doing : std::uint8_t { kComputing, kWaiting, kMoving, kNothing };
  struct Node {
    explicit Node(Machine fresh) : machine(std::move(fresh)) {}

    Machine machine;
    bool runs = true;
    Nanos watch_sleeps_until = 0;
    Nanos program_sleeps_until = 0;
    std::vector<Event> backlog;
    Nanos tick_at = kNever;
    std::vector<Sight> sights;
    bool data_came = false;
    Finding finding;
    std::vector<Nanos> hint_at;
    Nanos troubled_until = 0;

    Doing doing = Doing::kComputing;
    std::uint32_t arrived = 0;  // operations begun
    std::uint32_t finished = 0;
    Nanos waits_since = 0;
    bool wedges = false;
    bool wedges_inside = false;
    std::uint64_t digest = 0;
    std::uint32_t collectives = 0;
    std::uint32_t collectives_finished = 0;
    std::uint32_t messages = 0;
    int embraces = -1;
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  Node& node(int rank) { return nodes_[index(rank)]; }
  const Node& node(int rank) const { return nodes_[index(rank)]; }
  Line& line(int from, int to) { return lines_[from == 0 ? 2 * index(to) : 2 * index(from) + 1]; }
  bool is_cut(int a, int b) const { return !side_.empty() && side_[index(a)] != side_[index(b)]; }
  bool is_data_cut(int a, int b) const { return cuts_data_ && is_cut(a, b); }
  int left_of(int rank) const { return (rank + plan_.size - 1) % plan_.size; }

  void push(Nanos at, What what, int a, int b = 0, std::uint64_t ticket = 0);
  // network.cpp
  void send(int from, int to, Event event);
  void end_links(int rank, Nanos late);
  void deliver(int from, int to);
  void drain(int from, int to);
  void expire(int from, int to);
  void hear(int rank, Event event);
  void see_end(int at, int gone);
  // world.cpp
  void tell_by_sentinel(int rank);
  void resume(int rank);
  void tick(int rank, Nanos asked);
  void step(int rank, const Event& event);
  void act_on(int rank, Actions actions);
  void note_hint(int rank, const Hint& hint);
  void schedule_tick(int rank);
  void note(std::uint64_t value) {
    digest_ = (digest_ ^ value) * 0x100000001b3;
    digest_ ^= digest_ >> 29;
  }
  // program.cpp
  static bool is_collective(std::uint32_t operation) { return operation % 4 != 3; }
  Tag tag_of(const Node& node) const;
  Status status_of(int rank) const;
  void compute(int rank);
  void arrive(int rank);
  void release(int rank);
  void release_all();
  void finish(int rank, std::uint64_t operation);
  bool all_move() const;
  bool has_message(int rank) const;
  void move(int rank);

  const Plan plan_;
  std::vector<Node> nodes_;
  std::vector<Line> lines_;
  std::vector<bool> side_;
  bool cuts_data_ = false;
  std::uint32_t furthest_ = 0;  // operation that a rank has arrived at
  std::vector<int> arrivals_;   // by operation: how many ranks
  Nanos now_ = 1 * kSecond;
  std::uint64_t order_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t digest_ = 0xcbf29ce484222325;
  std::priority_queue<Item> agenda_;
  std::map<std::uint64_t, std::function<void()>> acts_;
  std::vector<std::string> false_hints_;
};

}  // namespace standfast::simulation
