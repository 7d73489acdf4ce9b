// Beacons between real processes: a rank that is killed at any instruction is told to its neighbour
// or to nobody, at once; and nobody who lives or leaves is ever told.
#include "core/control/beacon_linux.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/control/beacon.h"
#include "tests/core/support.h"

namespace standfast {
namespace {

using test::checked;
using test::eventually;
using test::fork_process;

constexpr int kSize = 4;

// The memory of one host, seen also by the test itself.
class Host {
 public:
  Host()
      : name_("/sf-test-" + std::to_string(getpid())), memory_(open_beacon_memory(name_, kSize)) {
    shm_unlink(name_.c_str());
    void* mapped =
        mmap(nullptr, kSize * sizeof(BeaconSlot), PROT_READ, MAP_SHARED, memory_.get(), 0);
    REQUIRE(mapped != MAP_FAILED);
    slots_ = static_cast<const BeaconSlot*>(mapped);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() { munmap(const_cast<BeaconSlot*>(slots_), kSize * sizeof(BeaconSlot)); }

  BeaconState state(int rank) const { return beacon_state(slots_[rank].word.load()); }
  BeaconConfig config(int rank, std::vector<int> ranks_here) const {
    BeaconConfig config;
    config.memory = test::duplicate(memory_);
    config.rank = rank;
    config.size = kSize;
    config.ranks_here = std::move(ranks_here);
    config.died = [](int) {};
    return config;
  }

 private:
  std::string name_;
  Fd memory_;
  const BeaconSlot* slots_;
};

// A rank of its own process, which does what it is told, a letter at a time.
class Child {
 public:
  // Ends with its parent. `body` runs in the child and never returns.
  template <class Body>
  explicit Child(Body body) {
    auto [ours, theirs] = test::socket_pair();
    link_ = std::move(ours);
    pid_ = fork_process();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    link_.reset();
    fcntl(theirs.get(), F_SETFL, 0);
    body(theirs.get());
    _exit(EXIT_SUCCESS);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) end();
  }

  pid_t pid() const { return pid_; }
  void send(char command) { CHECK(write(link_.get(), &command, 1) == 1); }
  // Sends, and waits until it is done.
  void tell(char command) {
    send(command);
    hear();
  }
  void hear() {
    char answer = 0;
    pollfd ready = {link_.get(), POLLIN, 0};
    REQUIRE(eventually([&] { return poll(&ready, 1, 0) == 1; }));
    REQUIRE(read(link_.get(), &answer, 1) == 1);
  }
  void kill() { ::kill(pid_, SIGKILL); }
  void reap() { waitpid(std::exchange(pid_, -1), nullptr, 0); }
  void end() {
    kill();
    reap();
  }

 private:
  pid_t pid_ = -1;
  Fd link_;
};

char command_from(int link) {
  char command = 0;
  if (read(link, &command, 1) != 1) _exit(EXIT_FAILURE);
  return command;
}

void answer(int link) {
  if (write(link, "", 1) != 1) _exit(EXIT_FAILURE);
}

void touch_gigabyte() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  madvise(memory, kBytes, MADV_NOHUGEPAGE);
  auto* bytes = static_cast<volatile char*>(memory);
  for (std::size_t at = 0; at < kBytes; at += 4096) bytes[at] = 1;
}

// 'b': hold a beacon. 'e': leave in order. 'f': fork a child that lives on. 'm': touch memory.
void serve(BeaconConfig config, int link) {
  std::unique_ptr<Beacon> beacon;
  for (;;) {
    switch (command_from(link)) {
      case 'b': beacon = std::make_unique<Beacon>(std::move(config)); break;
      case 'e': beacon->stop(); break;
      case 'm': touch_gigabyte(); break;
      case 'f':
        if (fork() == 0) {
          // Until the test ends, which closes its end.
          command_from(link);
          _exit(EXIT_SUCCESS);
        }
        break;
    }
    answer(link);
  }
}

struct Neighbour : Child {
  Neighbour(const Host& host, int rank, std::vector<int> ranks_here)
      : Child([&](int link) { serve(host.config(rank, std::move(ranks_here)), link); }) {}
};

// This process as a rank: who was told to it.
class Here {
 public:
  Here(const Host& host, int rank, std::vector<int> ranks_here) {
    BeaconConfig config = host.config(rank, std::move(ranks_here));
    config.died = [this](int dead) {
      const std::lock_guard lock(mutex_);
      told_.insert(dead);
    };
    beacon.emplace(std::move(config));
  }
  std::multiset<int> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  bool hears(std::multiset<int> ranks) {
    return eventually([&] { return told() == ranks; });
  }
  std::optional<Beacon> beacon;

 private:
  std::mutex mutex_;  // guards told_
  std::multiset<int> told_;
};

bool is_readable(int fd) {
  pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, 0) == 1;
}

}  // namespace

// A killed rank is told to its neighbour before its process has ended, if it has much to free.
TEST_CASE("beacon: the death of a big rank is told before its process has ended") {
  Host host;
  Neighbour big(host, 1, {0, 1});
  big.tell('m');
  big.tell('b');
  Here here(host, 0, {0, 1});
  const Fd process(static_cast<int>(
      checked(static_cast<int>(syscall(SYS_pidfd_open, big.pid(), 0)), "pidfd_open")));
  CHECK(here.told().empty());
  const Nanos start = now_ns();
  big.kill();
  bool ended_first = false;
  REQUIRE(eventually([&] {
    if (here.told().empty()) ended_first = ended_first || is_readable(process.get());
    return !here.told().empty();
  }));
  const Nanos told_after = now_ns() - start;
  REQUIRE(eventually([&] { return is_readable(process.get()); }));
  MESSAGE("told after " << told_after / kMicrosecond << " us, process ended after "
                        << (now_ns() - start) / kMicrosecond << " us");
  CHECK_FALSE(ended_first);
  CHECK(here.told() == std::multiset<int>{1});
  CHECK(host.state(1) == BeaconState::kDied);
}

// A rank that leaves is told to nobody, and its neighbour looks after the next one.
TEST_CASE("beacon: who leaves is no death, and is passed over") {
  Host host;
  Neighbour leaver(host, 1, {0, 1, 3});
  Neighbour next(host, 3, {0, 1, 3});
  leaver.tell('b');
  next.tell('b');
  Here here(host, 0, {0, 1, 3});
  leaver.tell('e');
  CHECK(host.state(1) == BeaconState::kLeft);
  leaver.end();
  next.kill();
  CHECK(here.hears({3}));
}

// Two that die at once are both told, once each.
TEST_CASE("beacon: two deaths at once") {
  for (int round = 0; round < 20; ++round) {
    Host host;
    Neighbour one(host, 1, {0, 1, 2});
    Neighbour two(host, 2, {0, 1, 2});
    one.tell('b');
    two.tell('b');
    Here here(host, 0, {0, 1, 2});
    one.kill();
    two.kill();
    REQUIRE(here.hears({1, 2}));
  }
}

// The ring goes around: the highest rank looks after the lowest.
TEST_CASE("beacon: the highest rank looks after the lowest") {
  Host host;
  Neighbour lowest(host, 0, {0, 3});
  lowest.tell('b');
  Here here(host, 3, {0, 3});
  lowest.kill();
  CHECK(here.hears({0}));
}

// A rank may take its beacon later than its neighbours, or never.
TEST_CASE("beacon: a neighbour that comes late, and one that never comes") {
  Host host;
  Neighbour late(host, 2, {0, 1, 2});
  Here here(host, 0, {0, 1, 2});  // there is no rank 1
  late.tell('b');
  late.kill();
  CHECK(here.hears({2}));
  CHECK(host.state(1) == BeaconState::kUntaken);
}

// A forked child holds nothing: its parent's death is told while it lives, its own is not.
TEST_CASE("beacon: a forked child neither hides nor fakes a death") {
  Host host;
  Neighbour parent(host, 1, {0, 1});
  parent.tell('b');
  Here here(host, 0, {0, 1});
  parent.tell('f');
  CHECK(here.told().empty());
  parent.kill();
  CHECK(here.hears({1}));
}

// A program that is replaced by another is a rank that is gone.
TEST_CASE("beacon: exec is a death") {
  Host host;
  Child rank([&](int link) {
    Beacon beacon(host.config(1, {0, 1}));
    answer(link);
    command_from(link);
    execl("/bin/sleep", "sleep", "30", nullptr);
    _exit(EXIT_FAILURE);
  });
  rank.hear();
  Here here(host, 0, {0, 1});
  CHECK(here.told().empty());
  rank.send('x');
  CHECK(here.hears({1}));
}

// Stopping does not wait for anything, whatever the neighbour does.
TEST_CASE("beacon: stopping takes no time") {
  Host host;
  Neighbour neighbour(host, 1, {0, 1});
  neighbour.tell('b');
  constexpr int kRounds = 200;
  Nanos longest = 0;
  for (int round = 0; round < kRounds; ++round) {
    Here here(host, 0, {0, 1});
    const Nanos start = now_ns();
    here.beacon->stop();
    longest = std::max(longest, now_ns() - start);
    CHECK(host.state(0) == BeaconState::kLeft);
  }
  // Far below the second after which the thread looks again by itself.
  CHECK(longest < 500 * kMillisecond);
}

// A rank that is killed at any instruction while it takes its beacon, holds it or leaves, is never
// left as one that lives; and if it is told, it was killed before.
TEST_CASE("beacon: death at any instruction") {
  constexpr unsigned kSeed = 20261129;
  std::mt19937 random(kSeed);
  std::array<int, 4> ends{};
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    Host host;
    Child rank([&](int link) {
      answer(link);
      {
        Beacon beacon(host.config(1, {0, 1}));
        const Nanos until = now_ns() + 50 * kMicrosecond;
        while (now_ns() < until) {
        }
      }
      for (;;) pause();
    });
    Here here(host, 0, {0, 1});
    rank.hear();
    const Nanos until = now_ns() + static_cast<Nanos>(random() % 400) * kMicrosecond;
    while (now_ns() < until) {
    }
    const bool told_alive = !here.told().empty();
    rank.end();
    REQUIRE_FALSE(told_alive);
    const BeaconState state = host.state(1);
    REQUIRE(state != BeaconState::kHeld);
    ++ends[static_cast<std::size_t>(state)];
    if (state == BeaconState::kDied) REQUIRE(here.hears({1}));
    here.beacon->stop();
    REQUIRE(here.told().size() == (state == BeaconState::kDied ? 1u : 0u));
  }
  MESSAGE("seed " << kSeed << ": " << ends[0] << " had not taken it, " << ends[2] << " died, "
                  << ends[3] << " had left");
  CHECK(ends[2] > 0);
}

#ifdef STANDFAST_SENTINEL

namespace {

const std::vector<std::byte> kLastWords = test::pattern(200, 7);

// A rank that has a sentinel, with its two links to others.
struct Lone {
  explicit Lone(const Host& host, std::vector<int> ranks_here = {2}) {
    for (auto& link : links) link = test::tcp_pair();
    rank.emplace([&](int control) {
      for (auto& link : links) link.first.reset();
      setsid();
      BeaconConfig config = host.config(2, std::move(ranks_here));
      config.sentinel = STANDFAST_SENTINEL;
      for (auto& link : links) config.links.push_back(link.second.get());
      config.last_words = kLastWords;
      Beacon beacon(std::move(config));
      answer(control);
      for (;;) {
        switch (command_from(control)) {
          case 'e': beacon.stop(); break;
          case 'c':
            for (auto& link : links) link.second.reset();
            break;
          case 'm': touch_gigabyte(); break;
        }
        answer(control);
      }
    });
    for (auto& link : links) link.second.reset();
    rank->hear();
  }

  // Reads a link to its end.
  static std::vector<std::byte> all_from(const Fd& link) {
    std::vector<std::byte> heard;
    std::byte buffer[512];
    Transfer transfer;
    REQUIRE(eventually([&] {
      transfer = receive_some(link.get(), buffer, sizeof buffer);
      if (transfer.kind == Transfer::Kind::kMoved) {
        heard.insert(heard.end(), buffer, buffer + transfer.bytes);
      }
      return transfer.kind == Transfer::Kind::kEnd;
    }));
    return heard;
  }

  std::array<std::pair<Fd, Fd>, 2> links;  // ours and the rank's
  std::optional<Child> rank;
};

}  // namespace

// Where a rank is alone on its host, the sentinel tells all its links, and then they end.
TEST_CASE("beacon: a sentinel tells of the death of a lone rank") {
  Host host;
  Lone lone(host);
  lone.rank->tell('m');
  const Fd process(static_cast<int>(
      checked(static_cast<int>(syscall(SYS_pidfd_open, lone.rank->pid(), 0)), "pidfd_open")));
  CHECK_FALSE(is_readable(lone.links[0].first.get()));
  const Nanos start = now_ns();
  lone.rank->kill();
  for (const auto& link : lone.links) CHECK(Lone::all_from(link.first) == kLastWords);
  const bool had_ended = is_readable(process.get());
  MESSAGE("told after " << (now_ns() - start) / kMicrosecond << " us");
  CHECK_FALSE(had_ended);
}

// What ends the rank together with its process group does not end the sentinel.
TEST_CASE("beacon: a sentinel outlives a SIGKILL to the rank's process group") {
  Host host;
  Lone lone(host);
  killpg(lone.rank->pid(), SIGKILL);
  for (const auto& link : lone.links) CHECK(Lone::all_from(link.first) == kLastWords);
}

// A rank may have both: rank 0, whose neighbours have no links to other hosts. Both are told.
TEST_CASE("beacon: a sentinel beside a neighbour") {
  for (int round = 0; round < 20; ++round) {
    Host host;
    Lone rank(host, {1, 2});
    Here here(host, 1, {1, 2});
    rank.rank->kill();
    CHECK(here.hears({2}));
    for (const auto& link : rank.links) CHECK(Lone::all_from(link.first) == kLastWords);
  }
}

// A rank that leaves in order takes its sentinel along: it says nothing, and no link stays open.
TEST_CASE("beacon: a sentinel is silent when its rank leaves") {
  Host host;
  Lone lone(host);
  lone.rank->tell('e');
  lone.rank->tell('c');
  for (const auto& link : lone.links) CHECK(Lone::all_from(link.first).empty());
}

// A sentinel that can't be started is noted, and the rank holds its beacon all the same.
TEST_CASE("beacon: a sentinel that can't be started") {
  Host host;
  const auto link = test::socket_pair();
  BeaconConfig config = host.config(2, {2});
  config.sentinel = "/nonexistent/sentinel";
  config.links = {link.first.get()};
  Beacon beacon(std::move(config));
  CHECK(beacon.sentinel_trouble() ==
        "posix_spawn(/nonexistent/sentinel): ENOENT (No such file or directory)");
  CHECK(host.state(2) == BeaconState::kHeld);
}

// Where neighbours tell all, there are no links for it: none is started.
TEST_CASE("beacon: no sentinel without links") {
  Host host;
  BeaconConfig config = host.config(2, {1, 2});
  config.sentinel = "/nonexistent/sentinel";
  Beacon beacon(std::move(config));
  CHECK(beacon.sentinel_trouble().empty());
}

#endif

}  // namespace standfast
