// What a star costs rank 0: the CPU time of its watch with N control links over loopback TCP, whose
// other ends beat as ranks do, each at a time of its own, from another process.
// With the core built (cmake -B build/core-plain -DSTANDFAST_MODULE=OFF && cmake --build
// build/core-plain --target standfast_core), in the top directory:
//   g++ -std=c++20 -O2 -I. bench/star.cpp build/core-plain/*.a -o /tmp/star && /tmp/star 512
// Arguments: [links, default 512] [seconds, default 10] [most % of a core: else status 1].
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/control/loop.h"
#include "tests/core/sockets.h"

namespace {

using namespace standfast;
using test::checked;
using test::tcp_pair;

constexpr Nanos kBeat = 1 * kSecond;  // what groups of so many ranks have by default
constexpr int kShares = 100;          // of a beat's time: how finely the ranks' beats are spread

std::pair<std::vector<Fd>, std::vector<Fd>> connections(int count) {
  std::pair<std::vector<Fd>, std::vector<Fd>> ends;
  for (int i = 0; i < count; ++i) {
    auto [caller, callee] = tcp_pair();
    ends.first.push_back(std::move(callee));
    ends.second.push_back(std::move(caller));
  }
  return ends;
}

// In the child, until it is killed: every rank in a collective, all well.
[[noreturn]] void beat_forever(const std::vector<Fd>& links) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Frame frame;
  frame.type = FrameType::kBeat;
  frame.generation = 1;
  std::vector<std::byte> trash(1 << 16);
  Nanos next = now_ns();
  for (std::uint32_t turn = 0;; ++turn) {
    frame.status.started = frame.status.finished = turn / kShares;
    const std::vector<std::byte> bytes = encode(frame);
    for (std::size_t i = turn % kShares; i < links.size(); i += kShares) {
      (void)send_some(links[i].get(), bytes.data(), bytes.size());
      while (receive_some(links[i].get(), trash.data(), trash.size()).kind ==
             Transfer::Kind::kMoved) {
      }
    }
    next += kBeat / kShares;
    const Nanos rest = next - now_ns();
    const timespec span = {0, static_cast<long>(rest > 0 ? rest : 0)};
    nanosleep(&span, nullptr);
  }
}

Nanos cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// In % of a core.
double measure(int links, int seconds) {
  auto [ours, theirs] = connections(links);
  const pid_t child = checked(fork(), "fork");
  if (child == 0) {
    ours.clear();
    beat_forever(theirs);
  }
  theirs.clear();
  WatchConfig config;
  config.shape = {0, links + 1, 1};
  config.limits = {
      .heartbeat = kBeat, .hint = 3 * kSecond, .silence = 20 * kSecond, .progress = 600 * kSecond};
  for (int i = 0; i < links; ++i) {
    config.links.emplace_back(i + 1, std::move(ours[static_cast<std::size_t>(i)]));
  }
  AbortWord abort;
  Watch watch(std::move(config), abort);
  const auto rest = [](int span) {
    const timespec time = {span, 0};
    nanosleep(&time, nullptr);
  };
  rest(2);
  const Nanos cpu = cpu_ns();
  const Nanos begun = now_ns();
  rest(seconds);
  const double share = static_cast<double>(cpu_ns() - cpu) / static_cast<double>(now_ns() - begun);
  const bool is_well = abort.verdict() == nullptr && watch.hints().empty();
  watch.end(Watch::Goodbye::kNone, 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (!is_well) throw std::runtime_error("the group was not well: nothing was measured");
  return 100 * share;
}

}  // namespace

int main(int argc, char** argv) {
  const int links = argc > 1 ? std::atoi(argv[1]) : 512;
  const int seconds = argc > 2 ? std::atoi(argv[2]) : 10;
  const double most = argc > 3 ? std::atof(argv[3]) : 100;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const double percent = measure(links, seconds);
  const double frames = 2.0 * links * to_seconds(kSecond) / to_seconds(kBeat);
  std::printf("%d links, %.0f frames/s: %.2f %% of a core, %.2f us per frame\n", links, frames,
              percent, percent / 100 * 1e6 / frames);
  return percent <= most ? 0 : 1;
}
