// The watch's thread: what it hears on control links and of processes becomes a verdict, and the
// verdict reaches every wait and every rank.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "core/control/loop.h"
#include "tests/core/watches.h"

namespace standfast {
namespace {

using test::BareRank;
using test::eventually;
using test::kGeneration;
using test::socket_pair;
using test::watch_config;
using test::WatchedRank;
using Goodbye = Watch::Goodbye;

constexpr Nanos kLinger = 20 * kSecond;

// Rank 0 as a watch, all others bare.
struct Star {
  explicit Star(int size) {
    WatchConfig config = watch_config(0, size);
    for (int rank = 1; rank < size; ++rank) {
      auto [ours, theirs] = socket_pair();
      config.links.emplace_back(rank, std::move(ours));
      others.emplace_back(std::move(theirs));
    }
    zero.start(std::move(config));
  }
  BareRank& rank(int number) { return others[static_cast<std::size_t>(number - 1)]; }

  WatchedRank zero;
  std::vector<BareRank> others;
};

// Rank 1 as a watch, rank 0 bare.
struct Leaf {
  explicit Leaf(int size = 3) : Leaf(size, {}) {}
  Leaf(int size, std::vector<std::pair<int, int>> processes)
      : Leaf(size, processes, socket_pair()) {}
  Leaf(int size, std::vector<std::pair<int, int>> processes, std::pair<Fd, Fd> link)
      : zero(std::move(link.second)) {
    WatchConfig config = watch_config(1, size);
    config.links.emplace_back(0, std::move(link.first));
    config.processes = std::move(processes);
    one.start(std::move(config));
  }

  WatchedRank one;
  BareRank zero;
};

// A process that does nothing until it is ended.
struct Bystander {
  Bystander() : pid(test::fork_process()) {
    if (pid == 0) {
      for (;;) pause();
    }
  }
  ~Bystander() { end(); }
  void end() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
  pid_t pid;
};

void check_verdict(const Verdict* verdict, VerdictKind kind, int rank) {
  REQUIRE(verdict != nullptr);
  CHECK(verdict->kind == kind);
  CHECK(verdict->rank == rank);
}

void check_frame(const std::optional<Frame>& frame, FrameType type, VerdictKind kind, int rank) {
  REQUIRE(frame);
  CHECK(frame->type == type);
  CHECK(frame->generation == kGeneration);
  CHECK(frame->verdict.kind == kind);
  CHECK(frame->verdict.rank == rank);
}

}  // namespace

// A link that ends without goodbye is a death, which rings the bells and is told to all others.
TEST_CASE("watch: a death") {
  Star star(4);
  const Nanos start = now_ns();
  star.rank(2).close();
  const Verdict* verdict = star.zero.verdict();
  check_verdict(verdict, VerdictKind::kDied, 2);
  CHECK(verdict->cause == "control link closed without goodbye");
  CHECK(verdict->reporter == 0);
  CHECK(verdict->detected_ns >= start);
  CHECK(verdict->detected_ns <= now_ns());
  pollfd bell = {star.zero.bell.fd(), POLLIN, 0};
  CHECK(eventually([&] { return poll(&bell, 1, 0) == 1; }));
  for (const int rank : {1, 3}) {
    check_frame(star.rank(rank).hear(), FrameType::kVerdict, VerdictKind::kDied, 2);
  }
}

// What a rank reports is decided by rank 0 and comes back to it, whatever it says afterwards.
TEST_CASE("watch: a report and its verdict") {
  Star star(3);
  star.rank(1).say(FrameType::kReport, VerdictKind::kNoProgress, 2);
  star.rank(1).say(FrameType::kReport, VerdictKind::kAborted, 1);
  check_verdict(star.zero.verdict(), VerdictKind::kNoProgress, 2);
  for (const int rank : {1, 2}) {
    check_frame(star.rank(rank).hear(), FrameType::kVerdict, VerdictKind::kNoProgress, 2);
  }

  Leaf leaf;
  leaf.one.watch->report(VerdictKind::kMismatch, 2, "apples and pears", false);
  const auto report = leaf.zero.hear();
  check_frame(report, FrameType::kReport, VerdictKind::kMismatch, 2);
  CHECK(report->verdict.reporter == 1);
  CHECK(report->verdict.cause == "apples and pears");
  leaf.zero.say(FrameType::kVerdict, VerdictKind::kDied, 2);
  check_verdict(leaf.one.verdict(), VerdictKind::kDied, 2);
}

// A rank whose coordinator is silent decides alone, soon.
TEST_CASE("watch: no answer") {
  Leaf leaf;
  const Nanos start = now_ns();
  leaf.one.watch->report(VerdictKind::kLinkLost, 2, "cable", true);
  check_verdict(leaf.one.verdict(), VerdictKind::kLinkLost, 2);
  CHECK(leaf.one.abort.verdict()->detected_ns - start >= Machine::kAnswerGrace);
}

// A goodbye and the end behind it, read in one go, are no death; the others are told who left, and
// the leaver's link is closed in answer.
TEST_CASE("watch: a goodbye") {
  Star star(3);
  star.rank(2).say(FrameType::kGoodbye, VerdictKind::kNone, 2);
  CHECK(star.rank(2).hears_the_end());
  star.rank(2).close();
  check_frame(star.rank(1).hear(), FrameType::kLeft, VerdictKind::kNone, 2);
  CHECK(eventually([&] { return star.zero.watch->has_left(2); }));
  CHECK_FALSE(star.zero.watch->has_left(1));
  CHECK(star.zero.abort.verdict() == nullptr);

  Leaf leaf;
  leaf.zero.say(FrameType::kLeft, VerdictKind::kNone, 2);
  CHECK(eventually([&] { return leaf.one.watch->has_left(2); }));
  leaf.zero.say(FrameType::kGoodbye, VerdictKind::kNone, 0);
  leaf.zero.close();
  CHECK(eventually([&] { return leaf.one.watch->has_left(0); }));
  leaf.one.watch->end(Goodbye::kOrderly, kLinger);
  CHECK(leaf.one.abort.verdict() == nullptr);
}

// A leaver's count of collectives says which ones can't take place any more, and wakes who waits.
TEST_CASE("watch: the last collective") {
  Star star(4);
  CHECK(star.zero.watch->last_collective() == kEveryCollective);
  CHECK(star.zero.watch->leaver_before(1'000'000) == -1);
  Frame frame;
  frame.type = FrameType::kGoodbye;
  frame.generation = kGeneration;
  for (const int rank : {3, 2}) {
    frame.verdict.rank = rank;
    frame.collectives = rank == 3 ? 7 : 5;
    star.rank(rank).say(encode(frame));
    CHECK(eventually([&] { return star.zero.watch->has_left(rank); }));
    const auto told = star.rank(1).hear();
    check_frame(told, FrameType::kLeft, VerdictKind::kNone, rank);
    CHECK(told->collectives == frame.collectives);
  }
  CHECK(eventually([&] { return star.zero.watch->last_collective() == 5; }));
  CHECK(star.zero.watch->leaver_before(5) == -1);
  CHECK(star.zero.watch->leaver_before(6) == 2);
  CHECK(star.zero.watch->leaver_before(8) == 2);
  pollfd bell = {star.zero.bell.fd(), POLLIN, 0};
  CHECK(eventually([&] { return poll(&bell, 1, 0) == 1; }));
}

// Whoever leaves in good order, first or last, is left without a verdict: the answer to a goodbye
// is no death of rank 0.
TEST_CASE("watch: leaving in good order") {
  for (const bool zero_first : {true, false}) {
    CAPTURE(zero_first);
    auto [a, b] = socket_pair();
    WatchedRank ranks[2];
    WatchConfig config[2] = {watch_config(0, 2), watch_config(1, 2)};
    config[0].links.emplace_back(1, std::move(a));
    config[1].links.emplace_back(0, std::move(b));
    for (int rank = 0; rank < 2; ++rank) ranks[rank].start(std::move(config[rank]));
    const int first = zero_first ? 0 : 1;
    test::Threads threads;
    threads.start([&] { ranks[first].watch->end(Goodbye::kOrderly, kLinger); });
    CHECK(eventually([&] { return ranks[1 - first].watch->has_left(first); }));
    const Nanos start = now_ns();
    ranks[1 - first].watch->end(Goodbye::kOrderly, kLinger);
    threads.join();
    CHECK(now_ns() - start < kLinger / 2);
    for (WatchedRank& rank : ranks) {
      rank.watch.reset();
      CHECK(rank.abort.verdict() == nullptr);
    }
  }
}

// Rank 0 stays coordinator while it lingers: deaths are still told, and then it does not stay.
TEST_CASE("watch: rank 0 lingers as coordinator") {
  Star star(4);
  star.rank(3).say(FrameType::kGoodbye, VerdictKind::kNone, 3);
  CHECK(star.rank(3).hears_the_end());
  test::Threads threads;
  threads.start([&] { star.zero.watch->end(Goodbye::kOrderly, kLinger); });
  check_frame(star.rank(1).hear(), FrameType::kLeft, VerdictKind::kNone, 3);
  check_frame(star.rank(1).hear(), FrameType::kGoodbye, VerdictKind::kNone, 0);
  const Nanos start = now_ns();
  star.rank(2).close();
  check_frame(star.rank(1).hear(), FrameType::kVerdict, VerdictKind::kDied, 2);
  threads.join();
  CHECK(now_ns() - start < kLinger / 2);
}

// Nobody who lingers waits for longer than was said, nor a rank for a coordinator that is silent.
TEST_CASE("watch: lingering is bounded") {
  Star star(2);
  Nanos start = now_ns();
  star.zero.watch->end(Goodbye::kOrderly, 100 * kMillisecond);
  CHECK(now_ns() - start >= 100 * kMillisecond);
  CHECK(now_ns() - start < 10 * kSecond);
  Leaf leaf;
  start = now_ns();
  leaf.one.watch->end(Goodbye::kOrderly, kLinger);
  CHECK(now_ns() - start < kLinger / 2);
  check_frame(leaf.zero.hear(), FrameType::kGoodbye, VerdictKind::kNone, 1);
}

// An interrupted rank says so and does not wait; one that failed says nothing more.
TEST_CASE("watch: other ways to end") {
  Leaf interrupted;
  interrupted.one.watch->end(Goodbye::kInterrupted, kLinger);
  const auto frame = interrupted.zero.hear();
  check_frame(frame, FrameType::kGoodbye, VerdictKind::kLeft, 1);
  CHECK(frame->verdict.cause == "interrupted");

  Leaf failed;
  failed.one.watch->report(VerdictKind::kFailed, 1, "ValueError: no", false);
  failed.one.watch->end(Goodbye::kNone, kLinger);
  failed.one.watch.reset();
  check_frame(failed.zero.hear(), FrameType::kReport, VerdictKind::kFailed, 1);
  CHECK_FALSE(failed.zero.hear());

  Leaf told;
  told.zero.say(FrameType::kVerdict, VerdictKind::kDied, 2);
  check_verdict(told.one.verdict(), VerdictKind::kDied, 2);
  told.one.watch->end(Goodbye::kOrderly, kLinger);
  told.one.watch.reset();
  CHECK_FALSE(told.zero.hear());
}

// A frame that comes byte by byte is a frame; bytes that are none of ours end the link with a text.
TEST_CASE("watch: what comes on a link") {
  Star star(3);
  Frame frame;
  frame.type = FrameType::kGoodbye;
  frame.generation = kGeneration;
  frame.verdict.rank = 1;
  for (const std::byte& byte : encode(frame)) star.rank(1).say({byte});
  CHECK(eventually([&] { return star.zero.watch->has_left(1); }));
  CHECK(star.zero.abort.verdict() == nullptr);
  star.rank(2).say(std::vector<std::byte>(200, std::byte{'x'}));
  check_verdict(star.zero.verdict(), VerdictKind::kDied, 2);
  CHECK(star.zero.abort.verdict()->cause == "control link carried bytes that are none of ours");
}

// A peer that does not read keeps the watch neither from deciding nor from telling the others, and
// gets everything once it reads.
TEST_CASE("watch: a peer that does not read") {
  WatchConfig config = watch_config(0, 3);
  auto [slow_here, slow_there] = socket_pair();
  auto [here, there] = socket_pair();
  test::set_option(slow_here.get(), SOL_SOCKET, SO_SNDBUF, 1);
  config.links.emplace_back(1, std::move(slow_here));
  config.links.emplace_back(2, std::move(here));
  BareRank slow(std::move(slow_there));
  BareRank other(std::move(there));
  WatchedRank zero;
  zero.start(std::move(config));
  Verdict verdict;
  verdict.kind = VerdictKind::kFailed;
  verdict.rank = 2;
  verdict.cause = std::string(8000, 'c');
  verdict.remote_message = std::string(8000, 'm');
  verdict.remote_traceback = std::string(8000, 't');
  zero.watch->report(verdict, false);
  check_verdict(zero.verdict(), VerdictKind::kFailed, 2);
  check_frame(other.hear(), FrameType::kVerdict, VerdictKind::kFailed, 2);
  SUBCASE("it reads later") {
    const auto heard = slow.hear();
    check_frame(heard, FrameType::kVerdict, VerdictKind::kFailed, 2);
    CHECK(heard->verdict.remote_traceback == verdict.remote_traceback);
  }
  SUBCASE("it never reads") {
    const Nanos start = now_ns();
    zero.watch->end(Goodbye::kOrderly, kLinger);
    CHECK(now_ns() - start < kLinger / 2);
  }
}

// Reports may come from any thread at any time; the first one wins, and none is torn.
TEST_CASE("watch: reports from many threads") {
  Star star(2);
  test::Threads threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.start([&] {
      for (int report = 0; report < 50; ++report) {
        star.zero.watch->report(VerdictKind::kAborted, 0, "enough", false);
        (void)star.zero.watch->has_left(1);
      }
    });
  }
  check_verdict(star.zero.verdict(), VerdictKind::kAborted, 0);
  threads.join();
  check_frame(star.rank(1).hear(), FrameType::kVerdict, VerdictKind::kAborted, 0);
}

// A process of this host that ends is a death even if somebody holds its link open.
TEST_CASE("watch: the end of a process") {
  Bystander bystander;
  WatchConfig config = watch_config(0, 2);
  auto [ours, theirs] = socket_pair();
  config.links.emplace_back(1, std::move(ours));
  config.processes.emplace_back(1, bystander.pid);
  WatchedRank zero;
  zero.start(std::move(config));
  const std::string cause = "its process " + std::to_string(bystander.pid) + " ended";
  bystander.end();
  check_verdict(zero.verdict(), VerdictKind::kDied, 1);
  CHECK(zero.abort.verdict()->cause == cause);
  CHECK(theirs.valid());
}

// What it said before it ended counts: a process that left in good order did not die.
TEST_CASE("watch: a goodbye, then the end of its process") {
  for (int run = 0; run < 5; ++run) {
    Bystander bystander;
    WatchConfig config = watch_config(0, 2);
    auto [ours, theirs] = socket_pair();
    config.links.emplace_back(1, std::move(ours));
    config.processes.emplace_back(1, bystander.pid);
    BareRank one(std::move(theirs));
    WatchedRank zero;
    zero.start(std::move(config));
    one.say(FrameType::kGoodbye, VerdictKind::kNone, 1);
    bystander.end();
    CHECK(eventually([&] { return zero.watch->has_left(1); }));
    zero.watch->end(Goodbye::kOrderly, kLinger);
    CHECK(zero.abort.verdict() == nullptr);
  }
}

// A rank that sees another's process end asks rank 0, and believes it when it says that one left.
TEST_CASE("watch: the end of a process that is not rank 0's to see") {
  Bystander bystander;
  Leaf leaf(3, {{2, bystander.pid}});
  bystander.end();
  const auto report = leaf.zero.hear();
  check_frame(report, FrameType::kReport, VerdictKind::kDied, 2);
  CHECK(report->suspicion);
  leaf.zero.say(FrameType::kLeft, VerdictKind::kNone, 2);
  CHECK(eventually([&] { return leaf.one.watch->has_left(2); }));
  CHECK(leaf.one.abort.verdict() == nullptr);
}

// A process that is gone before the watch can look is left to its link.
TEST_CASE("watch: a process that is no more") {
  Bystander bystander;
  const pid_t pid = bystander.pid;
  bystander.end();
  Leaf leaf(3, {{2, pid}});
  leaf.zero.say(FrameType::kLeft, VerdictKind::kNone, 2);
  CHECK(eventually([&] { return leaf.one.watch->has_left(2); }));
  CHECK(leaf.one.abort.verdict() == nullptr);
}

// A link that is reset says so in its cause.
TEST_CASE("watch: a reset link") {
  Leaf leaf(3, {}, test::tcp_pair());
  const linger at_once = {1, 0};
  REQUIRE(setsockopt(leaf.zero.link().get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  leaf.zero.close();
  check_verdict(leaf.one.verdict(), VerdictKind::kDied, 0);
  CHECK(leaf.one.abort.verdict()->cause == "control link broke: recv: " + errno_text(ECONNRESET));
}

// A goodbye is heard though a reset follows at its heels: the leaver had not read everything.
TEST_CASE("watch: a goodbye, then a reset") {
  for (int run = 0; run < 10; ++run) {
    auto [ours, theirs] = test::tcp_pair();
    WatchConfig config = watch_config(0, 3);
    config.links.emplace_back(1, std::move(ours));
    WatchedRank zero;
    BareRank one(std::move(theirs));
    if (run % 2 == 0) zero.start(std::move(config));
    one.say(FrameType::kGoodbye, VerdictKind::kNone, 1);
    const linger at_once = {1, 0};
    REQUIRE(setsockopt(one.link().get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    one.close();
    if (run % 2 != 0) zero.start(std::move(config));  // both are there when it looks first
    CHECK(eventually([&] { return zero.watch->has_left(1); }));
    zero.watch->end(Goodbye::kOrderly, kLinger);
    CHECK(zero.abort.verdict() == nullptr);
  }
}

// A watch without peers starts and ends.
TEST_CASE("watch: a group of one") {
  Star star(1);
  star.zero.watch->end(Goodbye::kOrderly, kLinger);
  CHECK(star.zero.abort.verdict() == nullptr);
}

}  // namespace standfast
