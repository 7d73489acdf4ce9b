// The only code that blocks: what ends a wait, how soon, and what a wait costs.
#include "core/wait/wait.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/core/wires.h"

namespace standfast {
namespace {

using test::eventually;
using test::pattern;
using test::Shm;
using test::Tcp;
using test::TightTcp;
using test::Verbs;
using test::WirePair;

#define EVERY_FABRIC Shm, Tcp, Verbs

Tag tag_of(std::uint32_t seq) {
  Tag tag;
  tag.seq = seq;
  tag.kind = OpKind::kSend;
  return tag;
}

// Rank 0 of a group; what is on the other end of its wires is the test's.
class Rig {
 public:
  explicit Rig(bool pumps = true)
      : waiter(abort, bell, neighbour, pumps, spin_budget(2, usable_cores()), wires) {
    wires.emplace_back();
  }

  // Returns the other end.
  std::unique_ptr<Wire> connect(WirePair pair) {
    wires.push_back(std::move(pair.a));
    return std::move(pair.b);
  }
  Outcome receive(int peer, std::uint32_t seq, void* to, std::size_t bytes) {
    Wire& wire = *wires[static_cast<std::size_t>(peer)];
    return waiter.until(wire, Half::kReceiving,
                        [&] { return wire.receive(tag_of(seq), to, bytes); });
  }
  Outcome send(int peer, std::uint32_t seq, const void* data, std::size_t bytes) {
    Wire& wire = *wires[static_cast<std::size_t>(peer)];
    return waiter.until(wire, Half::kSending, [&] { return wire.send(tag_of(seq), data, bytes); });
  }
  void raise() {
    Verdict verdict;
    verdict.kind = VerdictKind::kDied;
    verdict.rank = 1;
    abort.raise(verdict);
    bell.ring();
  }

  AbortWord abort;
  Bell bell;
  Bell neighbour;
  std::vector<std::unique_ptr<Wire>> wires;
  Waiter waiter;
};

Nanos clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// This thread's processor time, for others to read. Linux alone lets them.
bool find_cpu_clock([[maybe_unused]] clockid_t* clock) {
#ifdef __linux__
  return pthread_getcpuclockid(pthread_self(), clock) == 0;
#else
  return false;
#endif
}

// A thread that waits, and the moment in which it sleeps.
class Waiting {
 public:
  explicit Waiting(std::function<Outcome()> wait) {
    threads_.start([this, wait = std::move(wait)] {
      thread_ = pthread_self();
      has_cpu_clock_ = find_cpu_clock(&cpu_clock_);
      started_ = true;
      outcome_ = wait();
      returned_ns_ = now_ns();
      returned_ = true;
      (void)eventually([this] { return is_read_.load(); });
    });
    REQUIRE(eventually([this] { return started_.load(); }));
  }
  ~Waiting() { (void)finish(); }

  // It is asleep once its processor time stands still, or nearly so where a wait is a chain of
  // naps.
  bool is_asleep() {
    Nanos before = -1;
    return eventually([&] {
      const Nanos now = has_cpu_clock_ ? clock_ns(cpu_clock_) : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
      const Nanos last = std::exchange(before, now);
      return last >= 0 && now - last < 500 * kMicrosecond;
    });
  }
  bool has_returned() const { return returned_; }
  pthread_t thread() const { return thread_; }
  Outcome finish() {
    (void)eventually([this] { return returned_.load(); });
    is_read_ = true;
    threads_.join();
    return outcome_;
  }
  Nanos returned_ns() const { return returned_ns_; }

 private:
  std::atomic<bool> started_{false};
  std::atomic<bool> returned_{false};
  std::atomic<bool> is_read_{false};
  pthread_t thread_{};
  clockid_t cpu_clock_{};
  bool has_cpu_clock_ = false;
  Outcome outcome_ = Outcome::kPending;
  Nanos returned_ns_ = 0;
  test::Threads threads_;
};

Limits limit(Nanos deadline_in, InterruptCheck interrupted = nullptr) {
  return {.deadline = deadline_after(now_ns(), deadline_in), .interrupted = interrupted};
}

std::atomic<bool> wants_interrupt{false};
std::atomic<int> interrupt_checks{0};
bool asks_for_interrupt() {
  ++interrupt_checks;
  return wants_interrupt;
}

// A wait that was woken returns in less; a nap takes 100 ms. The quickest of several tries counts.
constexpr Nanos kQuick = 40 * kMillisecond;

Nanos thread_cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace

// A wait says first what this rank has still to say: what the peer must have before it can answer.
TEST_CASE("wait: what was held back goes before the first look") {
  Rig rig;
  const auto other = rig.connect(Tcp::make());
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  REQUIRE(rig.send(1, 1, data.data(), data.size()) == Outcome::kOk);
  REQUIRE(rig.wires[1]->sending());
  std::vector<std::byte> got(kFrameBytes);
  int looks = 0;
  CHECK(rig.waiter.until(*rig.wires[1], Half::kReceiving, [&] {
    ++looks;
    return rig.wires[1]->sending() ? Turn::kNotYet : Turn::kDone;
  }) == Outcome::kOk);
  CHECK(looks == 2);
  const Turn turn = other->receive(tag_of(1), got.data(), got.size());
  CHECK(turn == Turn::kDone);
  CHECK(got == data);
}

// Data that is there is taken without a look at anything else, even when there is a verdict.
TEST_CASE_TEMPLATE("wait: data first", Fabric, EVERY_FABRIC) {
  Rig rig;
  const auto peer = rig.connect(Fabric::make());
  rig.waiter.begin({});
  std::uint32_t got = 0;
  const std::uint32_t sent = 17;
  REQUIRE(peer->send(tag_of(1), &sent, sizeof sent) == Turn::kDone);
  rig.waiter.begin(limit(test::kPatience));
  CHECK(rig.receive(1, 1, &got, sizeof got) == Outcome::kOk);
  CHECK(got == 17);
  CHECK(rig.waiter.fault() == nullptr);
  CHECK(rig.waiter.waiting_for() == -1);

  REQUIRE(peer->send(tag_of(2), &sent, sizeof sent) == Turn::kDone);
  CHECK(eventually([&] {  // it is in the receiver's hands
    Tag tag;
    std::size_t bytes = 0;
    return rig.wires[1]->peek(&tag, &bytes) == Turn::kDone;
  }));
  rig.raise();
  rig.waiter.begin(limit(0));
  CHECK(rig.receive(1, 2, &got, sizeof got) == Outcome::kOk);
  CHECK(rig.receive(1, 3, &got, sizeof got) == Outcome::kVerdict);
}

// A sleeper is woken by data, a verdict, a goodbye, an end, a wrong frame and a signal, and its
// outcome says which.
TEST_CASE_TEMPLATE("wait: what ends it", Fabric, EVERY_FABRIC) {
  struct Case {
    const char* what;
    Outcome expected;
    std::function<void(Rig&, std::unique_ptr<Wire>&)> act;
  };
  const std::uint32_t data = 1;
  const Case cases[] = {
      {"data", Outcome::kOk,
       [&](Rig&, auto& peer) { (void)peer->send(tag_of(1), &data, sizeof data); }},
      {"a verdict", Outcome::kVerdict, [](Rig& rig, auto&) { rig.raise(); }},
      {"a goodbye", Outcome::kLeft, [](Rig&, auto& peer) { peer->say_goodbye(); }},
      {"an end", Outcome::kBroken, [](Rig&, auto& peer) { peer.reset(); }},
      {"a wrong frame", Outcome::kMismatch,
       [&](Rig&, auto& peer) { (void)peer->send(tag_of(2), &data, sizeof data); }},
  };
  for (const Case& one : cases) {
    const std::string what = one.what;
    CAPTURE(what);
    // The quickest of some: a loaded machine is slow, a lost wake-up is never quick.
    Nanos quickest = kNever;
    for (int run = 0; run < 20 && quickest >= kQuick; ++run) {
      Rig rig;
      auto peer = rig.connect(Fabric::make());
      rig.waiter.begin(limit(test::kPatience));
      std::uint32_t got = 0;
      Waiting waiting([&] { return rig.receive(1, 1, &got, sizeof got); });
      REQUIRE(waiting.is_asleep());
      const Nanos acted = now_ns();
      one.act(rig, peer);
      REQUIRE(waiting.finish() == one.expected);
      quickest = std::min(quickest, waiting.returned_ns() - acted);
      const bool has_fault = one.expected == Outcome::kLeft || one.expected == Outcome::kBroken ||
                             one.expected == Outcome::kMismatch;
      CHECK(rig.waiter.fault() == (has_fault ? rig.wires[1].get() : nullptr));
      CHECK(rig.waiter.waiting_for() == (one.expected == Outcome::kOk ? -1 : 1));
      CHECK(rig.waiter.waited() > 0);
    }
    CHECK(quickest < kQuick);
  }
}

// A sender that waits for room is woken by room, a verdict and the peer's end.
TEST_CASE_TEMPLATE("wait: what ends a sender's wait", Fabric, EVERY_FABRIC) {
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  for (const bool by_room : {true, false}) {
    CAPTURE(by_room);
    Rig rig;
    auto peer = rig.connect(Fabric::make());
    std::uint32_t sent = 0;
    while (rig.wires[1]->send(tag_of(sent), data.data(), data.size()) == Turn::kDone) ++sent;
    rig.waiter.begin(limit(test::kPatience));
    Waiting waiting([&] { return rig.send(1, sent, data.data(), data.size()); });
    REQUIRE(waiting.is_asleep());
    std::vector<std::byte> memory(kFrameBytes);
    if (!by_room) peer.reset();
    for (std::uint32_t n = 0; by_room && !waiting.has_returned(); ++n) {
      REQUIRE(eventually([&] {
        return waiting.has_returned() ||
               peer->receive(tag_of(n), memory.data(), memory.size()) == Turn::kDone;
      }));
    }
    CHECK(waiting.finish() == (by_room ? Outcome::kOk : Outcome::kBroken));
  }
}

// A deadline ends a wait in time, and not before.
TEST_CASE_TEMPLATE("wait: a deadline", Fabric, EVERY_FABRIC) {
  Rig rig;
  const auto peer = rig.connect(Fabric::make());
  std::byte memory{};
  for (const Nanos span : {Nanos{0}, 1 * kMillisecond, 150 * kMillisecond}) {
    CAPTURE(span);
    const Nanos start = now_ns();
    rig.waiter.begin(limit(span));
    CHECK(rig.receive(1, 1, &memory, 1) == Outcome::kTimeout);
    CHECK(now_ns() - start >= span);
    CHECK(now_ns() - start < span + 10 * kSecond);
    CHECK(rig.waiter.waiting_for() == 1);
  }
}

// A signal handler that wants to end the wait is asked within a moment, and not all the time.
TEST_CASE("wait: interrupted") {
  Rig rig;
  const auto peer = rig.connect(Shm::make());
  std::byte memory{};
  wants_interrupt = false;
  interrupt_checks = 0;
  rig.waiter.begin(limit(350 * kMillisecond, asks_for_interrupt));
  CHECK(rig.receive(1, 1, &memory, 1) == Outcome::kTimeout);
  CHECK(interrupt_checks >= 2);
  CHECK(interrupt_checks <= 12);

  rig.waiter.begin(limit(test::kPatience, asks_for_interrupt));
  Waiting waiting([&] { return rig.receive(1, 1, &memory, 1); });
  REQUIRE(waiting.is_asleep());
  wants_interrupt = true;
  CHECK(waiting.finish() == Outcome::kInterrupted);
}

// A signal ends a sleep by itself: its handler is asked at once, not after the nap.
TEST_CASE("wait: a signal wakes the sleeper") {
  struct sigaction ours{};
  struct sigaction before{};
  ours.sa_handler = [](int) { wants_interrupt = true; };
  sigaction(SIGUSR1, &ours, &before);
  Nanos quickest = kNever;
  for (int run = 0; run < 20 && quickest >= kQuick; ++run) {
    Rig rig;
    const auto peer = rig.connect(Shm::make());
    std::byte memory{};
    wants_interrupt = false;
    rig.waiter.begin(limit(test::kPatience, asks_for_interrupt));
    Waiting waiting([&] { return rig.receive(1, 1, &memory, 1); });
    REQUIRE(waiting.is_asleep());
    const Nanos sent = now_ns();
    REQUIRE(pthread_kill(waiting.thread(), SIGUSR1) == 0);
    REQUIRE(waiting.finish() == Outcome::kInterrupted);
    quickest = std::min(quickest, waiting.returned_ns() - sent);
  }
  sigaction(SIGUSR1, &before, nullptr);
  CHECK(quickest < kQuick);
}

// Waiting long costs next to nothing: less than 5 % of a core; 15 % where it has to look all the
// time, which is a few microseconds every 200. The cheapest of several waits counts: other work on
// the machine makes each look dearer.
TEST_CASE_TEMPLATE("wait: no processor time is burnt", Fabric, EVERY_FABRIC) {
  constexpr Nanos kWait = 300 * kMillisecond;
  Rig rig;
  const auto peer = rig.connect(Fabric::make());
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  std::uint32_t sent = 0;
  while (rig.wires[1]->send(tag_of(sent), data.data(), data.size()) == Turn::kDone) ++sent;
  std::byte memory{};
  for (const bool is_receiving : {true, false}) {
    CAPTURE(is_receiving);
    const int percent = rig.wires[1]->must_be_polled() ? 15 : 5;
    const Nanos allowed = kWait * percent / 100 * test::kSlowness;
    Nanos cheapest = kNever;
    for (int waits = 0; waits < 10 && cheapest >= allowed;) {
      rig.waiter.begin(limit(kWait));
      const Nanos before = thread_cpu_ns();
      const Outcome outcome = is_receiving ? rig.receive(1, 1, &memory, 1)
                                           : rig.send(1, sent, data.data(), data.size());
      if (outcome == Outcome::kOk) continue;  // the system's buffers may still grow
      REQUIRE(outcome == Outcome::kTimeout);
      cheapest = std::min(cheapest, thread_cpu_ns() - before);
      ++waits;
    }
    CHECK(cheapest < allowed);
  }
}

// What the caller holds is given back before a wait lasts, and kept where there is none.
TEST_CASE_TEMPLATE("wait: what its caller holds", Fabric, EVERY_FABRIC) {
  class Counted final : public Hold {
   public:
    void give_back() override { ++times; }
    std::atomic<int> times{0};
  };
  Rig rig;
  const auto peer = rig.connect(Fabric::make());
  Counted hold;
  Limits limits = limit(test::kPatience);
  limits.hold = &hold;
  std::uint32_t got = 0;
  const std::uint32_t sent = 17;
  REQUIRE(peer->send(tag_of(1), &sent, sizeof sent) == Turn::kDone);
  CHECK(eventually([&] {
    Tag tag;
    std::size_t bytes = 0;
    return rig.wires[1]->peek(&tag, &bytes) == Turn::kDone;
  }));
  rig.waiter.begin(limits);
  CHECK(rig.receive(1, 1, &got, sizeof got) == Outcome::kOk);
  CHECK(hold.times == 0);

  Waiting waiting([&] { return rig.receive(1, 2, &got, sizeof got); });
  CHECK(eventually([&] { return hold.times > 0; }));
  CHECK_FALSE(waiting.has_returned());
  (void)peer->send(tag_of(2), &sent, sizeof sent);
  CHECK(waiting.finish() == Outcome::kOk);
}

// While it waits for one peer, a wait moves on what others still have to get: else two ranks that
// wait for each other's frames would wait forever.
TEST_CASE("wait: pumps other wires") {
  Rig rig;
  const auto slow = rig.connect(TightTcp::make());
  const auto last = rig.connect(TightTcp::make());
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  rig.waiter.begin(limit(test::kPatience));
  for (std::uint32_t n = 0; n < static_cast<std::uint32_t>(kFramesInFlight); ++n) {
    REQUIRE(rig.send(1, n, data.data(), data.size()) == Outcome::kOk);
  }
  REQUIRE(rig.wires[1]->sending());
  std::atomic<bool> all_came{true};
  test::Threads threads;
  threads.start([&] {
    std::vector<std::byte> memory(kFrameBytes);
    for (std::uint32_t n = 0; n < static_cast<std::uint32_t>(kFramesInFlight); ++n) {
      const bool came = eventually(
          [&] { return slow->receive(tag_of(n), memory.data(), kFrameBytes) == Turn::kDone; });
      if (!came || memory != data) all_came = false;
    }
    (void)last->send(tag_of(1), "x", 1);
  });
  std::byte memory{};
  CHECK(rig.receive(2, 1, &memory, 1) == Outcome::kOk);
  threads.join();
  CHECK(all_came);
  CHECK(rig.waiter.flush_all() == Outcome::kOk);
}

// A wire that breaks while its frames are moved on is the fault, though another was waited for.
TEST_CASE("wait: a broken wire among the pumped") {
  Rig rig;
  auto broken = rig.connect(TightTcp::make());
  const auto other = rig.connect(TightTcp::make());
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  rig.waiter.begin(limit(test::kPatience));
  REQUIRE(rig.send(1, 0, data.data(), data.size()) == Outcome::kOk);
  REQUIRE(rig.wires[1]->sending());
  broken.reset();
  std::byte memory{};
  CHECK(rig.receive(2, 1, &memory, 1) == Outcome::kBroken);
  CHECK(rig.waiter.fault() == rig.wires[1].get());
}

// flush_all comes back when no wire needs the caller's memory any more, and not before.
TEST_CASE("wait: flush_all") {
  Rig rig;
  std::vector<std::unique_ptr<Wire>> peers;
  std::vector<std::byte> data = pattern(kFrameBytes, 1);
  const std::vector<std::byte> expected = data;
  rig.waiter.begin(limit(test::kPatience));
  for (int peer = 1; peer <= 3; ++peer) {
    peers.push_back(rig.connect(TightTcp::make()));
    REQUIRE(rig.send(peer, 0, data.data(), data.size()) == Outcome::kOk);
  }
  std::atomic<int> came{0};
  test::Threads threads;
  for (const auto& peer : peers) {
    threads.start([&] {
      std::vector<std::byte> memory(kFrameBytes);
      const bool is_done = eventually(
          [&] { return peer->receive(tag_of(0), memory.data(), kFrameBytes) == Turn::kDone; });
      if (is_done && memory == expected) ++came;
    });
  }
  CHECK(rig.waiter.flush_all() == Outcome::kOk);
  std::fill(data.begin(), data.end(), std::byte{0});
  for (int peer = 1; peer <= 3; ++peer)
    CHECK_FALSE(rig.wires[static_cast<std::size_t>(peer)]->sending());
  threads.join();
  CHECK(came == 3);
}

// A receiver that does not hold the sending halves leaves them alone: another thread is in there.
TEST_CASE_TEMPLATE("wait: a sender and a receiver side by side", Fabric, Shm, TightTcp) {
  Rig rig(false);
  const auto peer = rig.connect(Fabric::make());
  Waiter sender(rig.abort, rig.neighbour, rig.bell, true, spin_budget(2, 1), rig.wires);
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  constexpr std::uint32_t kFrames = 40;
  rig.waiter.begin(limit(test::kPatience));
  sender.begin(limit(test::kPatience));
  std::atomic<int> failures{0};
  Wire& wire = *rig.wires[1];
  test::Threads threads;
  threads.start([&] {
    for (std::uint32_t n = 0; n < kFrames; ++n) {
      const Outcome outcome = sender.until(
          wire, Half::kSending, [&] { return wire.send(tag_of(n), data.data(), data.size()); });
      if (outcome != Outcome::kOk) ++failures;
    }
    if (sender.flush_all() != Outcome::kOk) ++failures;
  });
  threads.start([&] {  // the peer takes a frame and sends one back
    std::vector<std::byte> memory(kFrameBytes);
    for (std::uint32_t n = 0; n < kFrames; ++n) {
      const bool is_done = eventually(
          [&] { return peer->receive(tag_of(n), memory.data(), memory.size()) == Turn::kDone; });
      if (!is_done || memory != data) ++failures;
      if (!eventually([&] { return peer->send(tag_of(n), &data[n], 1) == Turn::kDone; }))
        ++failures;
    }
    if (!eventually([&] { return peer->flush() == Turn::kDone; })) ++failures;
  });
  std::byte got{};
  for (std::uint32_t n = 0; n < kFrames; ++n) {
    CHECK(rig.receive(1, n, &got, 1) == Outcome::kOk);
    CHECK(got == data[n]);
  }
  threads.join();
  CHECK(failures == 0);
}

// Who waits for a verdict gets it when it comes, at once if it is there, and nothing when none
// comes.
TEST_CASE("wait: verdict_within") {
  Rig rig;
  const Nanos start = now_ns();
  CHECK(rig.waiter.verdict_within(60 * kMillisecond) == nullptr);
  CHECK(now_ns() - start >= 60 * kMillisecond);
  const Verdict* verdict = nullptr;
  Waiting waiting([&] {
    verdict = rig.waiter.verdict_within(test::kPatience);
    return Outcome::kVerdict;
  });
  REQUIRE(waiting.is_asleep());
  rig.raise();
  (void)waiting.finish();
  REQUIRE(verdict != nullptr);
  CHECK(verdict->rank == 1);
  CHECK(rig.waiter.verdict_within(0) == verdict);
}

// The first verdict is the only one, and what it carries is whole wherever it is seen.
TEST_CASE("abort word") {
  AbortWord word;
  CHECK(word.verdict() == nullptr);
  std::atomic<int> winners{0};
  std::atomic<int> winner{-1};
  test::Threads threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.start([&, rank] {
      Verdict verdict;
      verdict.rank = rank;
      verdict.cause = std::string(1000, static_cast<char>('a' + rank));
      if (word.raise(verdict)) {
        ++winners;
        winner = rank;
      }
    });
  }
  threads.start([&] {
    (void)eventually([&] { return word.verdict() != nullptr; });
    const Verdict* seen = word.verdict();
    if (seen->cause != std::string(1000, static_cast<char>('a' + seen->rank))) winners = 100;
  });
  threads.join();
  CHECK(winners == 1);
  CHECK(word.verdict()->rank == winner);
}

// There is at least one core, and with fewer cores than ranks a wait yields early.
TEST_CASE("wait: the spin budget") {
  CHECK(usable_cores() >= 1);
  CHECK(spin_budget(2, 2).spins_max > spin_budget(3, 2).spins_max);
  CHECK(spin_budget(3, 2).yielding_ns > 0);
  for (const int ranks : {2, 3}) {
    CHECK(spin_budget(ranks, 2).spins_min > 0);
    CHECK(spin_budget(ranks, 2).spins_min <= spin_budget(ranks, 2).spins_max);
  }
}

}  // namespace standfast
