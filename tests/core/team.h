// A whole group in one process: a Group per rank, each for a thread of its own, joined by real
// sockets and real shared memory.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fabric/shm/segment.h"
#include "core/group.h"
#include "tests/core/support.h"

namespace standfast::test {

struct TeamOptions {
  int size = 3;
  FabricKind fabric = FabricKind::kShm;
  Topology topology = Topology::kMesh;
  Nanos progress = kPatience;  // the watch judges waits by it
  Nanos linger = 10 * kSecond;
  int buffer_bytes = 0;        // of tcp sockets, 0: the system's choice
  bool can_cut = false;        // keeps duplicates of all sockets
  std::vector<int> pids = {};  // of all ranks, if they shall be watched
  // This rank runs in a process of its own, which does `outside` and then nothing, until it is
  // killed.
  int outsider = -1;
  std::function<void(Group&)> outside = {};
};

class Team {
 public:
  explicit Team(TeamOptions options) : options_(std::move(options)) {
    const auto size = static_cast<std::size_t>(options_.size);
    std::vector<GroupConfig> configs(size);
    sockets_.resize(size);
    for (int rank = 0; rank < options_.size; ++rank) configure(configs[index(rank)], rank);
    for (int low = 0; low < options_.size; ++low) {
      for (int high = low + 1; high < options_.size; ++high) connect(configs, low, high);
    }
    groups_.resize(size);
    if (options_.outsider >= 0) start_outsider(configs);
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.outsider) continue;
      groups_[index(rank)] = std::make_unique<Group>(std::move(configs[index(rank)]));
    }
  }
  // In threads: rank 0's close() waits for the others.
  ~Team() {
    kill_outsider();
    sockets_.clear();
    each([this](int rank) { groups_[index(rank)].reset(); });
  }

  int size() const { return options_.size; }
  Group& operator[](int rank) { return *groups_[index(rank)]; }
  void destroy(int rank) { groups_[index(rank)].reset(); }

  // Runs act(rank) in a thread per rank, and waits for all.
  void each(const std::function<void(int)>& act) {
    Threads threads;
    for (int rank = 0; rank < options_.size; ++rank) threads.start([&act, rank] { act(rank); });
    threads.join();
  }

  void kill_outsider() {
    if (outsider_pid_ <= 0) return;
    kill(outsider_pid_, SIGKILL);
    waitpid(outsider_pid_, nullptr, 0);
    outsider_pid_ = -1;
  }
  // What a kill does to a rank's sockets: they end, without goodbye. Not for rank 0, whose watch
  // lives on here and would tell of ends while others are still open.
  void cut(int rank) {
    for (const Socket& socket : sockets_[index(rank)]) ::shutdown(socket.fd.get(), SHUT_RDWR);
  }
  // What a pulled cable does to one data connection; the control links stay.
  void cut_wire(int a, int b) {
    for (const Socket& socket : sockets_[index(a)]) {
      if (!socket.is_control && socket.peer == b) ::shutdown(socket.fd.get(), SHUT_RDWR);
    }
  }

 private:
  // Beats, hints and silence in their usual relation to the progress limit.
  static WatchLimits limits_of(Nanos progress) {
    const Nanos beat = std::min(500 * kMillisecond, progress / 6);
    return {.heartbeat = beat,
            .hint = 3 * beat,
            .silence = kPatience,
            .progress = std::max(progress, 4 * beat)};
  }

  struct Socket {
    int peer;
    bool is_control;
    Fd fd;
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void configure(GroupConfig& config, int rank) {
    config.shape = {rank, options_.size, 5};
    config.topology = options_.topology;
    config.ranks_here = options_.size;
    config.limits = limits_of(options_.progress);
    config.close_linger = options_.linger;
    for (int peer = 0; peer < options_.size; ++peer) {
      const bool is_watched = !options_.pids.empty();
      config.peers.push_back(
          {peer, "here", is_watched ? options_.pids[index(peer)] : 0, is_watched});
    }
  }

  void start_outsider(std::vector<GroupConfig>& configs) {
    GroupConfig own = std::move(configs[index(options_.outsider)]);
    outsider_pid_ = fork_process();
    if (outsider_pid_ != 0) return;
    configs.clear();
    Group group(std::move(own));
    options_.outside(group);
    for (;;) pause();
  }

  void connect(std::vector<GroupConfig>& configs, int low, int high) {
    if (low == 0) {
      auto [a, b] = socket_pair();
      keep(low, high, true, a, b);
      configs[index(low)].control.emplace_back(high, std::move(a));
      configs[index(high)].control.emplace_back(low, std::move(b));
    }
    const bool is_tcp = options_.fabric == FabricKind::kTcp;
    auto [a, b] = is_tcp ? tcp_pair(options_.buffer_bytes) : socket_pair();
    keep(low, high, false, a, b);
    Fd memory[2];
    if (!is_tcp) {
      NamedSegment made = make_segment();
      memory[1] = attach_segment(made.name);
      memory[0] = std::move(made.fd);
      unlink_segment(made.name);
    }
    configs[index(low)].wires.push_back(
        {high, options_.fabric, std::move(a), std::move(memory[0]), true, is_tcp ? "tcp" : "shm"});
    configs[index(high)].wires.push_back(
        {low, options_.fabric, std::move(b), std::move(memory[1]), false, is_tcp ? "tcp" : "shm"});
  }

  void keep(int low, int high, bool is_control, const Fd& a, const Fd& b) {
    if (!options_.can_cut) return;
    sockets_[index(low)].push_back({high, is_control, duplicate(a)});
    sockets_[index(high)].push_back({low, is_control, duplicate(b)});
  }

  const TeamOptions options_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::vector<Socket>> sockets_;
  pid_t outsider_pid_ = -1;
};

// Every rank has its own, so that threads can complain without a lock.
using Complaints = std::vector<std::string>;

inline void check_none(const Complaints& complaints) {
  for (const std::string& complaint : complaints) CHECK(complaint == "");
}

inline std::string text_of(const Failure& failure) {
  return std::string(verdict_name(failure.verdict.kind)) + " of rank " +
         std::to_string(failure.verdict.rank) + " in " + failure.op + ": " + failure.verdict.cause;
}

inline const std::byte* bytes_of(const std::vector<std::int32_t>& memory) {
  return reinterpret_cast<const std::byte*>(memory.data());
}
inline std::byte* bytes_of(std::vector<std::int32_t>& memory) {
  return reinterpret_cast<std::byte*>(memory.data());
}

inline Request request(RequestKind kind, std::vector<std::int32_t> const* src,
                       std::vector<std::int32_t>* dst, std::size_t count, int peer = 0) {
  Request made;
  made.kind = kind;
  made.src = src == nullptr ? nullptr : bytes_of(*src);
  made.dst = dst == nullptr ? nullptr : bytes_of(*dst);
  made.count = count;
  made.dtype = DType::kInt32;
  made.peer = peer;
  return made;
}

// An operation of any kind that this rank takes part in, on memory of its own, with `partner` as
// root, destination or source. `count` int32 per rank.
class AnyOperation {
 public:
  AnyOperation(int size, std::size_t count)
      : in_(static_cast<std::size_t>(size) * count + 1, 1), out_(in_.size()), count_(count) {}

  Result run(Group& group, RequestKind kind, int partner, Nanos timeout = kNever) {
    Request made = request(kind, &in_, &out_, kind == RequestKind::kBarrier ? 0 : count_, partner);
    made.timeout = timeout;
    if (kind == RequestKind::kGatherBytes || kind == RequestKind::kReceiveBytes) {
      made.dtype = DType::kUInt8;
    }
    if (kind == RequestKind::kScatter) made.meta = {std::byte{1}};
    return group.run(made, nullptr);
  }

 private:
  std::vector<std::int32_t> in_;
  std::vector<std::int32_t> out_;
  std::size_t count_;
};

}  // namespace standfast::test
