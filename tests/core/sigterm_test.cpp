// What the watch does to its process: the exit timer and SIGTERM, each in a child of its own.
#include "core/control/sigterm.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "tests/core/watches.h"

// ThreadSanitizer rests for a second before a process exits, for the races of its last moments.
// Children by the dozen have no time for that.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "atexit_sleep_ms=0"; }

namespace standfast {
namespace {

using test::BareRank;
using test::eventually;
using test::socket_pair;
using test::watch_config;
using test::WatchedRank;
using Goodbye = Watch::Goodbye;

constexpr int kExitStatus = 75;
constexpr Nanos kGrace = 100 * kMillisecond;
constexpr Nanos kHooks = 2 * kSecond;  // beyond the grace, for abort hooks

// A process that runs `body`, with the signals' defaults and its stderr on a pipe.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_ = test::fork_process();
    if (pid_ == 0) {
      for (const int number : {SIGTERM, SIGABRT, SIGSEGV}) signal(number, SIG_DFL);
      dup2(ends[1], STDERR_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
      body();
      _exit(0);
    }
    stderr_ = Fd(ends[0]);
    ::close(ends[1]);
    set_nonblocking(stderr_.get());
  }
  ~Child() {
    if (!has_ended_) kill(pid_, SIGKILL);
    if (!has_ended_) waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  int status() {
    REQUIRE(eventually([&] {
      has_ended_ = has_ended_ || waitpid(pid_, &status_, WNOHANG) == pid_;
      return has_ended_;
    }));
    return status_;
  }
  bool exited_with(int code) { return WIFEXITED(status()) && WEXITSTATUS(status()) == code; }
  bool ended_by(int number) { return WIFSIGNALED(status()) && WTERMSIG(status()) == number; }
  std::string last_words() {
    char text[1024] = {};
    const ssize_t got = read(stderr_.get(), text, sizeof text - 1);
    return got > 0 ? text : "";
  }
  void stop_reading() { stderr_.reset(); }

 private:
  pid_t pid_ = -1;
  Fd stderr_;
  bool has_ended_ = false;
  int status_ = 0;
};

// A program that does not come back.
void hang() {
  for (;;) pause();
}
void wait_for(Nanos span) {
  const Nanos end = now_ns() + span;
  (void)eventually([&] { return now_ns() >= end; });
}

// Rank 1 of two, whose error nobody takes unless `take` does; its link is `fd`.
void run_with_timer(Fd fd, const std::function<void(Watch&)>& take, bool exit_on_fault = true) {
  WatchConfig config = watch_config(1, 2);
  config.links.emplace_back(0, std::move(fd));
  config.exit_on_fault = exit_on_fault;
  config.exit_grace = kGrace;
  WatchedRank rank;
  rank.start(std::move(config));
  take(*rank.watch);
  if (rank.verdict() == nullptr) _exit(1);
  take(*rank.watch);
  wait_for(kHooks + 3 * kGrace);
  _exit(0);
}

// Rank 1 of two in a child that serves SIGTERM; tells by a byte that it stands.
struct Served {
  explicit Served(const std::function<void(WatchedRank&)>& then) : Served(socket_pair(), then) {}

  BareRank zero;
  Child child;

 private:
  Served(std::pair<Fd, Fd> link, const std::function<void(WatchedRank&)>& then)
      : zero(std::move(link.first)), child([&] {
          zero.close();
          WatchConfig config = watch_config(1, 2);
          config.links.emplace_back(0, std::move(link.second));
          config.serve_sigterm = true;
          WatchedRank rank;
          rank.start(std::move(config));
          rank.watch->report(VerdictKind::kLinkLost, 0, "it stands", true);
          then(rank);
        }) {
    link.second.reset();
    const auto stands = zero.hear();
    REQUIRE(stands);
    REQUIRE(stands->verdict.cause == "it stands");
  }
};

void check_interrupted(const std::optional<Frame>& frame, int rank) {
  REQUIRE(frame);
  CHECK(frame->type == FrameType::kGoodbye);
  CHECK(frame->generation == test::kGeneration);
  CHECK(frame->verdict.kind == VerdictKind::kLeft);
  CHECK(frame->verdict.rank == rank);
  CHECK(frame->verdict.cause == "interrupted by SIGTERM");
}

}  // namespace

// A program that does not come back for its error is ended with status 75 after the grace and what
// abort hooks get beyond it, and its last words say whose fault it was.
TEST_CASE("exit timer: nobody takes the error") {
  auto [zero, one] = socket_pair();
  const Nanos start = now_ns();
  Child child([&, &z = zero, &o = one] {
    z.reset();
    run_with_timer(std::move(o), [](Watch&) {});
  });
  one.reset();
  zero.reset();
  CHECK(child.exited_with(kExitStatus));
  CHECK(now_ns() - start >= kGrace + kHooks);
  CHECK(
      child.last_words() ==
      "standfast: rank 1: ends with status 75: rank 0 died (control link closed without goodbye), "
      "and the program did not take the error within 2100 ms\n");
}

// The error that the program has taken, before or after it came, ends nothing; nor does it where
// the timer is off.
TEST_CASE("exit timer: off") {
  for (const bool is_taken : {true, false}) {
    CAPTURE(is_taken);
    auto [zero, one] = socket_pair();
    Child child([&, &z = zero, &o = one] {
      z.reset();
      run_with_timer(
          std::move(o),
          [&](Watch& watch) {
            if (is_taken) watch.taken();
          },
          is_taken);
    });
    one.reset();
    zero.reset();
    CHECK(child.exited_with(0));
    CHECK(child.last_words() == "");
  }
}

// A program that closes its group after the error is at work: the timer is off from then on.
TEST_CASE("exit timer: a group that is being closed") {
  auto [zero, one] = socket_pair();
  Child child([&, &z = zero, &o = one] {
    z.reset();
    WatchConfig config = watch_config(1, 2);
    config.links.emplace_back(0, std::move(o));
    config.exit_on_fault = true;
    config.exit_grace = kGrace;
    WatchedRank rank;
    rank.start(std::move(config));
    if (rank.verdict() == nullptr) _exit(1);
    rank.watch->end(Goodbye::kOrderly, kSecond);
    wait_for(kHooks + 3 * kGrace);
  });
  one.reset();
  zero.reset();
  CHECK(child.exited_with(0));
}

// Last words that nobody reads, or can read any more, keep nobody alive.
TEST_CASE("exit timer: stuck and broken stderr") {
  for (const bool is_broken : {false, true}) {
    CAPTURE(is_broken);
    auto [zero, one] = socket_pair();
    Child child([&, &z = zero, &o = one] {
      z.reset();
      const std::string filler(4096, 'f');
      const int flags = fcntl(STDERR_FILENO, F_GETFL);
      fcntl(STDERR_FILENO, F_SETFL, flags | O_NONBLOCK);
      while (!is_broken && write(STDERR_FILENO, filler.data(), filler.size()) > 0) {
      }
      fcntl(STDERR_FILENO, F_SETFL, flags);
      run_with_timer(std::move(o), [](Watch&) {});
    });
    if (is_broken) child.stop_reading();
    one.reset();
    zero.reset();
    CHECK(child.exited_with(kExitStatus));
  }
}

// SIGTERM tells the peers that this rank was interrupted, then ends the process as SIGTERM does.
TEST_CASE("sigterm: peers are told") {
  Served one([](WatchedRank&) { hang(); });
  kill(one.child.pid(), SIGTERM);
  check_interrupted(one.zero.hear(), 1);
  CHECK(one.child.ended_by(SIGTERM));
}

// Rank 0 tells all ranks.
TEST_CASE("sigterm: rank 0") {
  std::vector<BareRank> others;
  std::vector<Fd> links;
  for (int rank = 1; rank < 4; ++rank) {
    auto [ours, theirs] = socket_pair();
    links.push_back(std::move(ours));
    others.emplace_back(std::move(theirs));
  }
  Child child([&] {
    WatchConfig config = watch_config(0, 4);
    for (int rank = 1; rank < 4; ++rank) {
      others[static_cast<std::size_t>(rank - 1)].close();
      config.links.emplace_back(rank, std::move(links[static_cast<std::size_t>(rank - 1)]));
    }
    config.serve_sigterm = true;
    WatchedRank zero;
    zero.start(std::move(config));
    raise(SIGTERM);
    hang();
  });
  links.clear();
  for (BareRank& other : others) check_interrupted(other.hear(), 0);
  CHECK(child.ended_by(SIGTERM));
}

// With several groups in a process, the peers of each are told before it ends.
TEST_CASE("sigterm: two groups") {
  auto [zero, link] = socket_pair();
  BareRank other(std::move(zero));
  Served one([&, &second = link](WatchedRank&) {
    other.close();
    WatchConfig config = watch_config(1, 2);
    config.links.emplace_back(0, std::move(second));
    config.serve_sigterm = true;
    WatchedRank rank;
    rank.start(std::move(config));
    rank.watch->report(VerdictKind::kLinkLost, 0, "it stands, too", true);
    hang();
  });
  link.reset();
  REQUIRE(other.hear());
  kill(one.child.pid(), SIGTERM);
  check_interrupted(one.zero.hear(), 1);
  check_interrupted(other.hear(), 1);
  CHECK(one.child.ended_by(SIGTERM));
}

// A program that handles or ignores SIGTERM itself goes on doing so, and no goodbye is said.
TEST_CASE("sigterm: the program's own ways") {
  for (const bool ignores : {false, true}) {
    CAPTURE(ignores);
    auto [zero, link] = socket_pair();
    BareRank bare(std::move(zero));
    Child child([&, &l = link] {
      bare.close();
      static volatile std::sig_atomic_t came = 0;
      signal(SIGTERM, ignores ? SIG_IGN : +[](int) { came = 1; });
      WatchConfig config = watch_config(1, 2);
      config.links.emplace_back(0, std::move(l));
      config.serve_sigterm = true;
      WatchedRank rank;
      rank.start(std::move(config));
      raise(SIGTERM);
      rank.watch->end(Goodbye::kOrderly, 0);
      rank.watch.reset();
      _exit(ignores || came ? 7 : 1);
    });
    link.reset();
    const auto frame = bare.hear();
    REQUIRE(frame);
    CHECK(frame->type == FrameType::kGoodbye);
    CHECK(frame->verdict.kind == VerdictKind::kNone);
    CHECK(child.exited_with(7));
  }
}

// Once the last group has ended, SIGTERM is what it was before.
TEST_CASE("sigterm: put back") {
  Served one([](WatchedRank& rank) {
    struct sigaction during{};
    sigaction(SIGTERM, nullptr, &during);
    rank.watch->end(Goodbye::kOrderly, 0);
    struct sigaction after{};
    sigaction(SIGTERM, nullptr, &after);
    if (during.sa_handler == SIG_DFL || after.sa_handler != SIG_DFL) _exit(1);
    raise(SIGTERM);
  });
  const auto frame = one.zero.hear();
  REQUIRE(frame);
  CHECK(frame->verdict.kind == VerdictKind::kNone);
  CHECK(one.child.ended_by(SIGTERM));
}

// A handler that the program installs later is left alone when the group ends.
TEST_CASE("sigterm: a later handler stays") {
  Served one([](WatchedRank& rank) {
    static volatile std::sig_atomic_t came = 0;
    signal(SIGTERM, [](int) { came = 1; });
    rank.watch->end(Goodbye::kOrderly, 0);
    raise(SIGTERM);
    _exit(came ? 7 : 1);
  });
  CHECK(one.child.exited_with(7));
}

// The handler rings every bell, from whatever place it interrupts, and leaves errno as it was.
TEST_CASE("sigterm: the handler") {
  Child child([] {
    const Bell bells[2];
    for (const Bell& bell : bells) {
      if (!sigterm::enlist(bell.ring_fd())) _exit(1);
      while (write(bell.ring_fd(), "full", 4) > 0) {
      }
    }
    if (sigterm::pending()) _exit(2);
    errno = ENOTSOCK;
    raise(SIGTERM);
    if (errno != ENOTSOCK) _exit(3);
    if (!sigterm::pending()) _exit(4);
    sigterm::served(bells[0].ring_fd());
    sigterm::served(bells[1].ring_fd());  // the last one ends the process
    _exit(5);
  });
  CHECK(child.ended_by(SIGTERM));
}

// A second SIGTERM is final, however busy the first one's goodbyes are.
TEST_CASE("sigterm: the second one") {
  Child child([] {
    const Bell bell;
    if (!sigterm::enlist(bell.ring_fd())) _exit(1);
    raise(SIGTERM);
    raise(SIGTERM);
    _exit(2);
  });
  CHECK(child.ended_by(SIGTERM));
}

// In a forked child the parent's groups are nobody's business, and its own are served as ever.
TEST_CASE("sigterm: after a fork") {
  Child child([] {
    const Bell bell;
    if (!sigterm::enlist(bell.ring_fd())) _exit(1);
    const pid_t grandchild = test::fork_process();
    if (grandchild == 0) {
      sigterm::forget();
      struct sigaction after{};
      sigaction(SIGTERM, nullptr, &after);
      if (after.sa_handler != SIG_DFL) _exit(2);
      const Bell own;
      if (!sigterm::enlist(own.ring_fd())) _exit(3);
      raise(SIGTERM);
      sigterm::served(own.ring_fd());
      _exit(4);
    }
    int status = 0;
    if (waitpid(grandchild, &status, 0) != grandchild) _exit(5);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM) _exit(6);
    if (sigterm::pending()) _exit(8);
    _exit(7);
  });
  CHECK(child.exited_with(7));
}

}  // namespace standfast
