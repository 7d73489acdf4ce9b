// What the core makes of TCP over loopback: bare sockets that move the same bytes - a ping-pong, an
// exchange in both directions, a stream - and beside them the core's group, in one run. A process
// per rank; no Python. In the top directory:
//   make core-plain
//   g++ -std=c++20 -O2 -I. bench/tcp.cpp build/core-plain/*.a -ldl -o /tmp/tcp && /tmp/tcp
// Arguments: [ranks, default 2] [most bytes, default 16777216] [operations, all by default].
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/fabric/tcp/nearby.h"
#include "core/group.h"
#include "tests/core/sockets.h"

namespace {

using namespace standfast;
using test::checked;
using test::tcp_pair;

constexpr Nanos kBudget = 300 * kMillisecond;  // of one cell
constexpr int kCallsMax = 20'000;
constexpr int kCallsMin = 8;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "tcp: %s\n", why.c_str());
  std::_Exit(1);
}

std::string size_text(std::size_t bytes) {
  char text[32];
  const bool is_large = bytes >= (1 << 20);
  std::snprintf(text, sizeof text, is_large ? "%zu MiB" : "%zu B", is_large ? bytes >> 20 : bytes);
  return text;
}

// A socket that moves bytes and nothing else.
class Bare {
 public:
  explicit Bare(int fd) : fd_(fd) {}

  // Sends and receives so much, whichever goes.
  void exchange(const std::byte* from, std::size_t sending, std::byte* to, std::size_t receiving) {
    std::size_t sent = 0;
    std::size_t received = 0;
    while (sent < sending || received < receiving) {
      if (sent < sending) sent += moved(send_some(fd_, from + sent, sending - sent));
      if (received < receiving) {
        received += moved(receive_some(fd_, to + received, receiving - received));
      }
    }
  }

 private:
  static std::size_t moved(const Transfer& transfer) {
    if (transfer.kind == Transfer::Kind::kMoved) return transfer.bytes;
    if (transfer.kind != Transfer::Kind::kWouldBlock) give_up("the other side is gone");
    return 0;
  }
  int fd_;
};

// Calls that follow each other without a pause; the median, in us. `agree` gives all ranks rank
// 0's number.
double median_us(const std::function<void()>& call, const std::function<int(int)>& agree) {
  const Nanos begin = now_ns();
  for (int i = 0; i < 5; ++i) call();
  const Nanos each = std::max<Nanos>(1, (now_ns() - begin) / 5);
  const int calls =
      agree(static_cast<int>(std::clamp<Nanos>(kBudget / each, kCallsMin, kCallsMax)));
  std::vector<Nanos> times(static_cast<std::size_t>(calls));
  for (int i = 0; i < calls / 20; ++i) call();
  for (Nanos& time : times) {
    const Nanos start = now_ns();
    call();
    time = now_ns() - start;
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return static_cast<double>(times[static_cast<std::size_t>(calls / 2)]) / 1e3;
}

void tell(const std::string& what, std::size_t bytes, std::size_t moved, double us) {
  std::printf("%-22s %10s %12.2f us", what.c_str(), size_text(bytes).c_str(), us);
  if (bytes >= 4096)
    std::printf("  %6.2f GB/s sent by a rank", static_cast<double>(moved) / us / 1e3);
  std::printf("\n");
  std::fflush(stdout);
}

std::vector<std::size_t> sizes_up_to(std::size_t most) {
  std::vector<std::size_t> sizes;
  for (const std::size_t bytes : {8ul, 1ul << 10, 32ul << 10, 1ul << 20, 16ul << 20, 64ul << 20}) {
    if (bytes <= most) sizes.push_back(bytes);
  }
  return sizes;
}

void measure_bare(std::size_t most) {
  auto [a, b] = tcp_pair();
  ease_nearby(a.get());
  ease_nearby(b.get());
  const pid_t child = checked(fork(), "fork");
  const bool first = child != 0;
  Bare bare(first ? a.get() : b.get());
  const auto agree = [&](int calls) {
    int theirs = calls;
    if (first) bare.exchange(as_bytes(&calls), sizeof calls, nullptr, 0);
    if (!first) bare.exchange(nullptr, 0, as_bytes(&theirs), sizeof theirs);
    return theirs;
  };
  for (const std::size_t bytes : sizes_up_to(most)) {
    std::vector<std::byte> in(bytes, std::byte{1});
    std::vector<std::byte> out(bytes, std::byte{1});
    const double there = median_us(
        [&] {
          if (first) bare.exchange(in.data(), bytes, nullptr, 0);
          bare.exchange(nullptr, 0, out.data(), bytes);
          if (!first) bare.exchange(in.data(), bytes, nullptr, 0);
        },
        agree);
    const double both =
        median_us([&] { bare.exchange(in.data(), bytes, out.data(), bytes); }, agree);
    if (!first) continue;
    tell("bare ping-pong", bytes, bytes, there / 2);
    tell("bare exchange", bytes, bytes, both);
  }
  if (!first) std::_Exit(0);
  waitpid(child, nullptr, 0);
}

struct Operation {
  const char* name;
  RequestKind kind;
};
constexpr Operation kOperations[] = {
    {"pingpong", RequestKind::kSend},
    {"barrier", RequestKind::kBarrier},
    {"all_reduce", RequestKind::kAllReduce},
    {"all_gather", RequestKind::kAllGather},
    {"reduce_scatter", RequestKind::kReduceScatter},
};

// Of `bytes` as bench/README.md counts them, what one rank has to send at least.
std::size_t least_sent(RequestKind kind, std::size_t bytes, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  switch (kind) {
    case RequestKind::kAllReduce: return 2 * bytes * (n - 1) / n;
    case RequestKind::kAllGather:
    case RequestKind::kReduceScatter: return bytes * (n - 1);
    default: return bytes;
  }
}

class Rank {
 public:
  Rank(GroupConfig config, std::size_t most)
      : rank_(config.shape.rank),
        size_(config.shape.size),
        group_(std::move(config)),
        in_(most * static_cast<std::size_t>(size_), std::byte{0}),
        out_(in_.size(), std::byte{0}) {}

  void measure(const Operation& operation, std::size_t bytes) {
    const double us = median_us([&] { call(operation.kind, bytes); },
                                [&](int calls) { return from_first(calls); });
    if (rank_ != 0) return;
    const bool is_one_way = operation.kind == RequestKind::kSend;
    tell(operation.name, bytes, least_sent(operation.kind, bytes, size_), is_one_way ? us / 2 : us);
  }
  void close() { group_.close(Watch::Goodbye::kOrderly); }

 private:
  int from_first(int value) {
    Request request;
    request.kind = RequestKind::kBroadcast;
    request.src = request.dst = as_bytes(&value);
    request.count = 1;
    request.dtype = DType::kInt32;
    run(request);
    return value;
  }

  void call(RequestKind kind, std::size_t bytes) {
    Request request;
    request.kind = kind;
    request.src = in_.data();
    request.dst = out_.data();
    request.dtype = DType::kFloat32;
    request.count = kind == RequestKind::kBarrier ? 0 : bytes / sizeof(float);
    if (kind != RequestKind::kSend) return run(request);
    Request receive = request;
    receive.kind = RequestKind::kReceive;
    request.peer = receive.peer = 1 - rank_;
    run(rank_ == 0 ? request : receive);
    run(rank_ == 0 ? receive : request);
  }

  void run(const Request& request) {
    const Result result = group_.run(request, nullptr);
    if (result.failure) give_up(result.failure->op + ": " + result.failure->verdict.cause);
  }

  const int rank_;
  const int size_;
  Group group_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

std::vector<GroupConfig> configurations(int ranks) {
  std::vector<GroupConfig> configs(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    GroupConfig& config = configs[static_cast<std::size_t>(rank)];
    config.shape = {rank, ranks, 1};
    config.topology = Topology::kMesh;
    config.ranks_here = ranks;
    config.limits = {.heartbeat = 500 * kMillisecond,
                     .hint = 3 * kSecond,
                     .silence = 20 * kSecond,
                     .progress = 60 * kSecond};
    config.close_linger = kSecond;
    for (int peer = 0; peer < ranks; ++peer) config.peers.push_back({peer, "here", 0, false});
  }
  for (int low = 0; low < ranks; ++low) {
    for (int high = low + 1; high < ranks; ++high) {
      GroupConfig& lower = configs[static_cast<std::size_t>(low)];
      GroupConfig& higher = configs[static_cast<std::size_t>(high)];
      if (low == 0) {
        auto [a, b] = tcp_pair();
        lower.control.emplace_back(high, std::move(a));
        higher.control.emplace_back(low, std::move(b));
      }
      auto [a, b] = tcp_pair();
      lower.wires.push_back({high, FabricKind::kTcp, std::move(a), Fd(), true, "tcp"});
      higher.wires.push_back({low, FabricKind::kTcp, std::move(b), Fd(), false, "tcp"});
    }
  }
  return configs;
}

bool is_wanted(const char* name, int count, char** arguments) {
  if (count <= 3) return true;
  return std::any_of(arguments + 3, arguments + count,
                     [&](const char* each) { return std::strcmp(each, name) == 0; });
}

void measure_group(int ranks, std::size_t most, int count, char** arguments) {
  std::vector<GroupConfig> configs = configurations(ranks);
  int here = 0;
  for (int rank = 1; rank < ranks && here == 0; ++rank) {
    if (checked(fork(), "fork") == 0) here = rank;
  }
  GroupConfig own = std::move(configs[static_cast<std::size_t>(here)]);
  configs.clear();
  Rank rank(std::move(own), most);
  for (const Operation& operation : kOperations) {
    const bool is_pair = operation.kind == RequestKind::kSend;
    if (!is_wanted(operation.name, count, arguments) || (is_pair && ranks != 2)) continue;
    for (const std::size_t bytes : sizes_up_to(most)) {
      if (operation.kind == RequestKind::kBarrier && bytes > 8) continue;
      rank.measure(operation, bytes);
    }
  }
  rank.close();
  if (here != 0) std::_Exit(0);
  while (wait(nullptr) > 0) {
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int ranks = count > 1 ? std::atoi(arguments[1]) : 2;
  const std::size_t most = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 16ul << 20;
  try {
    if (is_wanted("bare", count, arguments)) measure_bare(most);
    measure_group(ranks, most, count, arguments);
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  return 0;
}
