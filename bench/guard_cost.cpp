// What the guard and the watch cost an operation in which nothing fails: the same operations by a
// core built as always and by one built with STANDFAST_UNGUARDED. bench/guard_cost.py builds both,
// runs them in turn and compares.
//
//   guard_cost time <bytes> <seconds>    two ranks, two processes: nanoseconds per all_sum
//   guard_cost count <operations>        one thread, eager messages: for valgrind --tool=callgrind
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/guard.h"
#include "core/fabric/shm/segment.h"
#include "core/group.h"

namespace standfast {
namespace {

struct Ends {
  GroupConfig ranks[2];
};

Ends configure(bool watched) {
  Ends ends;
  int control[2];
  int bell[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) std::abort();
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, bell) != 0) std::abort();
  NamedSegment made = make_segment();
  Fd memory[2] = {std::move(made.fd), attach_segment(made.name)};
  unlink_segment(made.name);
  for (int rank = 0; rank < 2; ++rank) {
    GroupConfig& config = ends.ranks[rank];
    config.shape = {rank, 2, 1};
    config.ranks_here = 2;
    config.close_linger = kSecond;
    if (watched) {
      config.limits = {kSecond / 2, 3 * kSecond, 20 * kSecond, 600 * kSecond, 0};
    }
    config.control.emplace_back(1 - rank, Fd(control[rank]));
    config.wires.push_back(
        {1 - rank, FabricKind::kShm, Fd(bell[rank]), std::move(memory[rank]), rank == 0, "shm"});
  }
  return ends;
}

Request all_sum(std::vector<float>& in, std::vector<float>& out) {
  Request request;
  request.kind = RequestKind::kAllReduce;
  request.src = as_bytes(in.data());
  request.dst = as_bytes(out.data());
  request.count = in.size();
  request.dtype = DType::kFloat32;
  return request;
}

// Blocks of calls, as many on each rank, for about so long: a run of a few milliseconds may have
// both ranks on one core. Of the blocks' averages the first decile, since other work only adds.
int time_calls(std::size_t bytes, double seconds) {
  Ends ends = configure(kGuarded);
  const pid_t child = fork();
  Group group(std::move(ends.ranks[child == 0 ? 1 : 0]));
  std::vector<float> in(std::max<std::size_t>(bytes / sizeof(float), 1), 1.0F);
  std::vector<float> out(in.size());
  const Request request = all_sum(in, out);
  const std::size_t calls = std::clamp<std::size_t>((8 << 20) / (bytes + 4096), 3, 500);
  const double expected = static_cast<double>(calls) * (3e-7 + static_cast<double>(bytes) / 3e9);
  const int blocks = std::max(5, static_cast<int>(seconds / expected));
  std::vector<double> spans;
  for (int block = 0; block < blocks; ++block) {
    const Nanos start = now_ns();
    for (std::size_t i = 0; i < calls; ++i) {
      if (group.run(request, nullptr).failure) return 1;
    }
    spans.push_back(static_cast<double>(now_ns() - start) / static_cast<double>(calls));
  }
  group.close(Watch::Goodbye::kOrderly);
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  std::sort(spans.begin(), spans.end());
  std::printf("%.1f\n", spans[spans.size() / 10]);
  return status;
}

// Sends that need no wait, then their receives: the same instructions in every run.
int count_calls(int operations) {
  Ends ends = configure(false);
  Group sender(std::move(ends.ranks[0]));
  Group receiver(std::move(ends.ranks[1]));
  std::byte bytes[8] = {};
  Request send;
  send.kind = RequestKind::kSend;
  send.src = bytes;
  send.count = sizeof bytes;
  send.peer = 1;
  Request receive = send;
  receive.kind = RequestKind::kReceive;
  receive.dst = bytes;
  receive.peer = 0;
  for (int i = 0; i < operations; ++i) {
    if (sender.run(send, nullptr).failure || receiver.run(receive, nullptr).failure) return 1;
  }
  _exit(0);
}

int usage() {
  std::fprintf(stderr, "usage: guard_cost time BYTES SECONDS | count OPERATIONS\n");
  return 2;
}

}  // namespace
}  // namespace standfast

int main(int argc, char** argv) {
  using namespace standfast;
  if (argc == 4 && std::strcmp(argv[1], "time") == 0) {
    return time_calls(std::strtoull(argv[2], nullptr, 10), std::atof(argv[3]));
  }
  if (argc == 3 && std::strcmp(argv[1], "count") == 0) return count_calls(std::atoi(argv[2]));
  return usage();
}
