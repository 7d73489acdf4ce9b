// Groups of machines that live long in virtual time, through pauses, late threads and short cuts
// that are nobody's fault, and then lose somebody. A failure prints the plan and its seed.
#include "tests/core/simulation/world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"

namespace standfast::simulation {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kShare = 40;  // sanitizers are slow, and one thread has no races
#else
constexpr int kShare = 1;
#endif

using Kind = VerdictKind;

// How a life ends.
enum class End {
  kNone,
  kKill,         // a process ends at once
  kBigKill,      // its sockets close seconds later; its beacon is seen before
  kFreeze,       // for longer than the limit
  kVanish,       // a host, without a word
  kPartition,    // hosts that do not hear each other
  kWedgeBefore,  // it lives, and does not begin the next operation
  kWedgeInside,  // it lives, and does not end it
  kCircle,       // two wait for each other's message
  kControlCut,   // nothing comes on a control link, while data flows
  kShortFreeze,  // just within the limit
};
constexpr int kEnds = 11;

constexpr const char* kEndNames[kEnds] = {"none",   "kill",        "big kill",     "freeze",
                                          "vanish", "partition",   "wedge before", "wedge inside",
                                          "circle", "control cut", "short freeze"};

// Limits in their usual relation: 0.5 s, 3 s, 20 s, 600 s at 1.
WatchLimits usual_limits(Nanos heartbeat) {
  return {.heartbeat = heartbeat,
          .hint = 6 * heartbeat,
          .silence = 40 * heartbeat,
          .progress = 1200 * heartbeat};
}
// As short as they may be: the verdict itself within 3 s.
constexpr WatchLimits kShort = {
    .heartbeat = kSecond / 6, .hint = kSecond / 2, .silence = 1 * kSecond, .progress = 1 * kSecond};

// Groups of more than 64 ranks beat less often.
WatchLimits of_many(WatchLimits limits) {
  limits.heartbeat *= 2;
  return limits;
}

struct Life {
  Plan plan;
  Nanos span;  // before the end begins
  End end;
};

std::string text(const Life& life) {
  return "seed " + std::to_string(life.plan.seed) + ", " + std::to_string(life.plan.size) +
         " ranks on " + std::to_string(life.plan.hosts) + " hosts, heartbeat " +
         std::to_string(life.plan.limits.heartbeat / kMillisecond) + " ms, delay " +
         std::to_string(life.plan.delay / kMicrosecond) + " us, compute " +
         std::to_string(life.plan.compute / kMillisecond) +
         " ms, end: " + kEndNames[static_cast<int>(life.end)] +
         (life.plan.is_unkind ? ", unkind" : "");
}

// Of the hosts, some on either side.
std::vector<bool> sides(World& world) {
  std::vector<bool> hosts;
  for (int host = 0; host < world.plan().hosts; ++host) hosts.push_back(world.random.one_in(2));
  hosts.front() = false;
  hosts.back() = hosts.size() > 1;
  std::vector<bool> side;
  for (int rank = 0; rank < world.size(); ++rank) {
    side.push_back(hosts[static_cast<std::size_t>(world.host_of(rank))]);
  }
  return side;
}

// What nobody is to blame for: pauses, late threads, cuts that are mended, now and then.
void trouble(World& world, Nanos end) {
  const WatchLimits& limits = world.plan().limits;
  const Nanos next = world.now() + world.random.span(2 * limits.silence, 40 * limits.silence);
  if (next + 2 * limits.silence >= end) return;
  world.at(next, [&world, end] {
    const Nanos silence = world.plan().limits.silence;
    const Nanos span = world.random.span(silence / 100, silence * 6 / 10);
    const int rank = world.random.below(world.size());
    switch (world.random.below(3)) {
      case 0: world.freeze(rank, span); break;
      case 1: world.delay_watch(rank, span); break;
      default: {
        world.cut(sides(world), world.random.one_in(2));
        world.at(world.now() + span / 3, [&world] { world.heal(); });
      }
    }
    trouble(world, end);
  });
}

struct Expected {
  std::vector<Kind> kinds;           // one of them; none: nobody hears of anything
  std::vector<bool> accused;         // by rank: may be named
  std::vector<bool> accused_beyond;  // the same, on the other side of a partition
  std::vector<bool> side;
  std::vector<bool> lost;  // of these nothing is expected
  Nanos from = 0;
  Nanos until = kNever;
  bool hints = false;  // all others hear of a suspicion first
};

// Lets the end begin now.
Expected begin_end(World& world, End end) {
  const auto size = static_cast<std::size_t>(world.size());
  const WatchLimits& limits = world.plan().limits;
  const int rank = world.random.below(world.size());
  const auto i = static_cast<std::size_t>(rank);
  const Nanos now = world.now();
  const Nanos slack = 3 * limits.heartbeat + 6 * world.plan().delay + 50 * kMillisecond;
  Expected expected;
  expected.accused.assign(size, false);
  expected.lost.assign(size, false);
  expected.side.assign(size, false);
  expected.accused[i] = true;
  expected.lost[i] = true;
  expected.from = now;
  world.forget_hints();
  switch (end) {
    case End::kNone: break;
    case End::kKill:
    case End::kBigKill: {
      const bool big = end == End::kBigKill;
      world.kill(rank, big ? 5 * kSecond : world.random.span(0, kMillisecond), big);
      expected.kinds = {Kind::kDied};
      expected.until = now + 1 * kSecond;
      break;
    }
    case End::kFreeze:
      world.freeze(rank, kNever);
      expected.kinds = {Kind::kStalled};
      // Its last frame may still be on its way.
      expected.from = now + limits.silence - limits.heartbeat;
      expected.until = now + limits.silence + slack;
      expected.hints = true;
      break;
    case End::kVanish:
      world.vanish(rank);
      for (std::size_t each = 0; each < size; ++each) {
        if (world.host_of(static_cast<int>(each)) != world.host_of(rank)) continue;
        expected.accused[each] = expected.lost[each] = true;
      }
      expected.kinds = {Kind::kUnreachable};
      expected.until = now + limits.silence + slack;
      break;
    case End::kPartition: {
      const std::vector<bool>& side = expected.side = sides(world);
      expected.lost[i] = false;
      expected.accused = side;
      expected.accused_beyond.assign(size, false);
      expected.accused_beyond[0] = true;
      world.cut(side, true);
      expected.kinds = {Kind::kUnreachable};
      expected.until = now + limits.silence + slack;
      break;
    }
    case End::kWedgeBefore:
    case End::kWedgeInside:
      world.wedge(rank, end == End::kWedgeInside);
      expected.lost[i] = false;
      expected.kinds = {Kind::kStalled};
      expected.from = now + limits.progress;
      expected.until = now + 8 * world.plan().compute + limits.progress + slack;
      break;
    case End::kCircle:
      world.embrace(rank, (rank + 1) % world.size());
      expected.accused.assign(size, true);
      expected.lost[i] = false;
      expected.kinds = {Kind::kNoProgress};
      expected.from = now;
      expected.until = now + 8 * world.plan().compute + limits.progress + slack;
      break;
    case End::kControlCut: {
      std::vector<bool> side(size);
      side[i] = true;
      world.cut(side, false);
      break;
    }
    case End::kShortFreeze: world.freeze(rank, limits.silence * 7 / 10); break;
  }
  return expected;
}

void check(const World& world, const Expected& expected) {
  const Finding* first[2] = {};
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    const Finding& found = world.finding(rank);
    if (expected.lost[i] && !expected.kinds.empty()) continue;
    INFO("rank ", rank, " found: ", std::string(verdict_name(found.kind)), " of rank ", found.rank,
         " at ", found.at, ", expected from ", expected.from, " until ", expected.until);
    if (expected.kinds.empty()) {
      REQUIRE(found.kind == Kind::kNone);
      continue;
    }
    const auto& accused = expected.side[i] ? expected.accused_beyond : expected.accused;
    REQUIRE(std::count(expected.kinds.begin(), expected.kinds.end(), found.kind) == 1);
    REQUIRE(accused[static_cast<std::size_t>(found.rank)]);
    REQUIRE(found.at >= expected.from);
    REQUIRE(found.at <= expected.until);
    const Finding*& same = first[expected.side[i] ? 1 : 0];
    if (same == nullptr) same = &found;
    REQUIRE(found.rank == same->rank);
    if (expected.hints) {
      const Nanos hinted = world.hint_at(rank, found.rank);
      INFO("hinted at ", hinted);
      REQUIRE(hinted <= found.at);
      REQUIRE(hinted - expected.from <= world.plan().limits.hint - world.plan().limits.silence +
                                            world.plan().limits.heartbeat + 4 * world.plan().delay +
                                            20 * kMillisecond);
    }
  }
}

struct Tally {
  double hours = 0;
  double usual_hours = 0;  // at the default limits or shorter ones
  int groups = 0;
  std::uint64_t steps = 0;
};

std::uint64_t live(const Life& life, Tally& tally) {
  INFO(text(life));
  World world(life.plan);
  trouble(world, world.now() + life.span);
  const Nanos begin = world.now();
  world.run_until(begin + life.span);
  for (int rank = 0; rank < world.size(); ++rank) {
    INFO("rank ", rank,
         " found before the end: ", std::string(verdict_name(world.finding(rank).kind)),
         " of rank ", world.finding(rank).rank, " at ", world.finding(rank).at);
    REQUIRE(world.finding(rank).kind == Kind::kNone);
  }
  for (const std::string& hint : world.false_hints()) REQUIRE(hint == "");
  const std::uint32_t done = world.operations_done();
  REQUIRE(done > 0);
  const Expected expected = begin_end(world, life.end);
  const bool ends = !expected.kinds.empty();
  const Nanos rest = 3 * life.plan.limits.silence + 8 * life.plan.compute;
  world.run_until(ends ? expected.until + kSecond : world.now() + rest);
  check(world, expected);
  if (!ends) REQUIRE(world.operations_done() > done);
  tally.hours += to_seconds(world.now() - begin) / 3600;
  if (life.plan.limits.heartbeat <= 500 * kMillisecond) {
    tally.usual_hours += to_seconds(world.now() - begin) / 3600;
  }
  ++tally.groups;
  tally.steps += world.steps();
  return world.digest();
}

Life draw(std::uint64_t seed, int size, const WatchLimits& limits, Nanos span) {
  Random random(seed * 7919);
  Life life;
  life.plan.seed = seed;
  life.plan.size = size;
  life.plan.hosts = 1 + random.below(std::min(size, 64));
  life.plan.limits = limits;
  life.plan.delay =
      random.span(20 * kMicrosecond, std::min(limits.heartbeat / 10, 30 * kMillisecond));
  life.plan.compute = random.span(limits.heartbeat / 5, 2 * limits.heartbeat);
  life.plan.is_mesh = size <= 8;
  life.span = span;
  life.end = static_cast<End>(random.below(kEnds));
  const bool needs_two = life.end == End::kVanish || life.end == End::kPartition;
  if (needs_two) life.plan.hosts = std::max(life.plan.hosts, 2);
  if (life.end == End::kControlCut) {
    if (!life.plan.is_mesh) life.end = End::kShortFreeze;
    life.plan.compute = limits.heartbeat / 2;
  }
  return life;
}

void live_all(Tally& tally, std::uint64_t seed, int lives, int least, int most,
              const WatchLimits& limits, Nanos span) {
  Random sizes(seed);
  for (int i = 0; i < std::max(1, lives / kShare); ++i) {
    const int size = least + sizes.below(most - least + 1);
    live(draw(seed + static_cast<std::uint64_t>(i), size, limits, span), tally);
  }
}

// Of this process: other work on the machine does not count.
Nanos cpu_ns() {
  return static_cast<Nanos>(static_cast<double>(std::clock()) / CLOCKS_PER_SEC * 1e9);
}

void tell(const char* what, const Tally& tally, Nanos begun) {
  const double seconds = to_seconds(cpu_ns() - begun);
  MESSAGE(std::string(what), ": ", tally.hours, " simulated hours (", tally.usual_hours,
          " of them at the default limits or shorter), ", tally.groups, " groups, ", tally.steps,
          " events, ", seconds, " s of CPU, ", static_cast<double>(tally.steps) / seconds / 1e6,
          " million events per second");
}

constexpr Nanos kHour = 3600 * kSecond;

}  // namespace

// Thousands of hours of groups that are troubled and well: nobody is named. Then something ends
// them: whoever is the reason is named, by all survivors alike, within its limit, and hinted at
// before.
TEST_CASE("simulation: small groups") {
  const Nanos begun = cpu_ns();
  Tally tally;
  live_all(tally, 1'000, 200, 2, 8, kShort, 60 * kSecond);
  live_all(tally, 2'000, 200, 2, 8, usual_limits(500 * kMillisecond), kHour / 10);
  live_all(tally, 3'000, 100, 2, 8, usual_limits(5 * kSecond), 3 * kHour);
  live_all(tally, 4'000, 100, 2, 8, usual_limits(60 * kSecond), 100 * kHour);
  tell("small groups", tally, begun);
  CHECK(tally.hours > (kShare == 1 ? 10'000 : 100));
}

// The same for groups of up to 64, 256, and 1,024 ranks, for as long as there is time.
TEST_CASE("simulation: large groups") {
  const Nanos begun = cpu_ns();
  Tally tally;
  WatchLimits brisk = usual_limits(500 * kMillisecond);
  brisk.progress = 30 * kSecond;
  live_all(tally, 5'000, 20, 9, 64, kShort, 20 * kSecond);
  live_all(tally, 6'000, 20, 9, 64, brisk, 60 * kSecond);
  live_all(tally, 7'000, 4, 65, 256, of_many(brisk), 60 * kSecond);
  tell("large groups", tally, begun);
}

TEST_CASE("simulation: a star of 1,024") {
  const Nanos begun = cpu_ns();
  Tally tally;
  WatchLimits brisk = of_many(usual_limits(500 * kMillisecond));
  brisk.silence = 8 * kSecond;
  brisk.progress = 8 * kSecond;
  for (const End end : {End::kKill, End::kFreeze, End::kWedgeInside, End::kPartition}) {
    Life life = draw(8'000 + static_cast<std::uint64_t>(end), 1024 / kShare, brisk, 10 * kSecond);
    life.plan.hosts = 64 / kShare + 1;
    life.end = end;
    live(life, tally);
  }
  tell("a star of 1,024", tally, begun);
}

// Frames that come twice or in another order, as no link of ours brings them, mislead nobody.
TEST_CASE("simulation: unkind links") {
  const Nanos begun = cpu_ns();
  Tally tally;
  for (std::uint64_t seed = 9'000; seed < 9'000 + std::max(8, 200 / kShare); ++seed) {
    Life life =
        draw(seed, 2 + static_cast<int>(seed % 7), usual_limits(500 * kMillisecond), 120 * kSecond);
    life.plan.is_unkind = true;
    live(life, tally);
  }
  tell("unkind links", tally, begun);
}

// The same seed is the same run, event by event, or a printed seed would be worth nothing; another
// seed is another run.
TEST_CASE("simulation: a seed tells the whole run") {
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= 22; ++seed) {
    CAPTURE(seed);
    Tally tally;
    Life life =
        draw(seed, 2 + static_cast<int>(seed % 12), usual_limits(500 * kMillisecond), 60 * kSecond);
    life.plan.is_unkind = seed % 2 == 0;
    const std::uint64_t digest = live(life, tally);
    CHECK(live(life, tally) == digest);
    CHECK(digests.insert(digest).second);
  }
}

}  // namespace standfast::simulation
