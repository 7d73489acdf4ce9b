// The core's operations over shared memory, without Python: one process per rank, the time of a
// call on rank 0. With the core built (cmake -B build/core-plain -DSTANDFAST_MODULE=OFF && cmake
// --build build/core-plain --target standfast_core), in the top directory:
//   g++ -std=c++20 -O2 -I. bench/shm.cpp build/core-plain/*.a -o build/shm_bench
//   build/shm_bench RANKS [OPERATION|all [BYTES[,BYTES...] [DTYPE|every [SECONDS per cell
//   [lent]]]]]
// "lent": arrays as standfast.empty() makes them.
// Prints, per operation and size: median and best of the calls' times in microseconds, and the
// bytes of one rank's input per second. Sizes are bytes of what one rank gives; of reduce_scatter,
// of what one rank gets.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/fabric/shm/arena.h"
#include "core/fabric/shm/segment.h"
#include "core/group.h"

namespace standfast {
namespace {

struct Operation {
  const char* name;
  RequestKind kind;
  bool gives_all;  // src holds a block for each rank
  bool gets_all;   // dst does
};

constexpr Operation kOperations[] = {
    {"all_sum", RequestKind::kAllReduce, false, false},
    {"all_gather", RequestKind::kAllGather, false, true},
    {"reduce_scatter", RequestKind::kReduceScatter, true, false},
    {"all_to_all", RequestKind::kAllToAll, true, true},
    {"broadcast", RequestKind::kBroadcast, false, false},
    {"barrier", RequestKind::kBarrier, false, false},
    {"pingpong", RequestKind::kSend, false, false},
};

struct Cell {
  Operation operation;
  std::size_t bytes;
  DType dtype;
  bool is_lent;
};

std::vector<GroupConfig> configure(int size) {
  std::vector<GroupConfig> configs(static_cast<std::size_t>(size));
  const auto at = [&](int rank) -> GroupConfig& { return configs[static_cast<std::size_t>(rank)]; };
  for (int rank = 0; rank < size; ++rank) {
    at(rank).shape = {rank, size, 1};
    at(rank).ranks_here = size;
    at(rank).close_linger = kSecond;
    at(rank).limits = {kSecond / 2, 3 * kSecond, 20 * kSecond, 600 * kSecond, 0};
  }
  for (int low = 0; low < size; ++low) {
    for (int high = low + 1; high < size; ++high) {
      int bell[2];
      int control[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, bell) != 0) std::abort();
      if (low == 0) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) std::abort();
        at(low).control.emplace_back(high, Fd(control[0]));
        at(high).control.emplace_back(low, Fd(control[1]));
      }
      NamedSegment made = make_segment(size);
      Fd other = attach_segment(made.name);
      unlink_segment(made.name);
      at(low).wires.push_back(
          {high, FabricKind::kShm, Fd(bell[0]), std::move(made.fd), true, "shm"});
      at(high).wires.push_back(
          {low, FabricKind::kShm, Fd(bell[1]), std::move(other), false, "shm"});
    }
  }
  return configs;
}

// As NumPy's large arrays: fresh pages, 16 bytes into one; or of the arena.
class Array {
 public:
  Array(std::size_t bytes, bool is_lent) : bytes_(bytes + 16), is_lent_(is_lent) {
    if (is_lent) {
      memory_ = Arena::here()->take(bytes_);
    } else {
      void* memory =
          mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memory_ = memory == MAP_FAILED ? nullptr : as_bytes(memory);
    }
    if (memory_ == nullptr) std::abort();
    std::memset(memory_, 0, bytes_);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
    if (is_lent_) {
      Arena::here()->give_back(memory_, bytes_);
    } else {
      munmap(memory_, bytes_);
    }
  }
  std::byte* data() const { return memory_ + (is_lent_ ? 0 : 16); }

 private:
  std::size_t bytes_;
  bool is_lent_;
  std::byte* memory_;
};

class Rank {
 public:
  Rank(GroupConfig config, double seconds)
      : rank_(config.shape.rank),
        size_(config.shape.size),
        seconds_(seconds),
        group_(std::move(config)) {}
  ~Rank() { group_.close(Watch::Goodbye::kOrderly); }

  void measure(const Cell& cell) {
    const auto size = static_cast<std::size_t>(size_);
    const std::size_t most = size * cell.bytes;
    const Array in(cell.operation.gives_all ? most : cell.bytes, cell.is_lent);
    const Array out(cell.operation.gets_all ? most : cell.bytes, cell.is_lent);
    Request request;
    request.kind = cell.operation.kind;
    request.src = in.data();
    request.dst = out.data();
    request.dtype = cell.dtype;
    request.count = cell.bytes / dtype_bytes(cell.dtype);
    call(request);
    const double first = timed(request);
    const std::size_t calls = agreed(std::clamp(seconds_ * 1e6 / first, 8.0, 20000.0));
    std::vector<double> times(calls);
    for (double& time : times) time = timed(request);
    if (rank_ != 0) return;
    std::sort(times.begin(), times.end());
    const double median = times[calls / 2];
    std::printf("%-14s %-9s %10zu  %10.1f (%10.1f) us  p99 %10.1f  %7.2f GB/s\n",
                cell.operation.name, dtype_name(cell.dtype), cell.bytes, median, times[0],
                times[calls * 99 / 100], static_cast<double>(cell.bytes) / median / 1e3);
    std::fflush(stdout);
  }

 private:
  void run(const Request& request) {
    const Result result = group_.run(request, nullptr);
    if (!result.failure) return;
    std::fprintf(stderr, "rank %d: %s\n", rank_, result.failure->verdict.cause.c_str());
    std::exit(1);
  }

  void call(Request request) {
    if (request.kind != RequestKind::kSend) return run(request);
    request.peer = 1 - rank_;
    for (int turn = 0; turn < 2; ++turn) {
      request.kind = turn == rank_ ? RequestKind::kSend : RequestKind::kReceive;
      run(request);
    }
  }

  double timed(const Request& request) {
    const Nanos start = now_ns();
    call(request);
    const auto span = static_cast<double>(now_ns() - start) / 1e3;
    return request.kind == RequestKind::kSend ? span / 2 : span;
  }

  std::size_t agreed(double calls) {
    std::int64_t own = rank_ == 0 ? static_cast<std::int64_t>(calls) : 0;
    std::int64_t all = 0;
    Request request;
    request.kind = RequestKind::kAllReduce;
    request.src = as_bytes(&own);
    request.dst = as_bytes(&all);
    request.count = 1;
    request.dtype = DType::kInt64;
    run(request);
    return static_cast<std::size_t>(all);
  }

  const int rank_;
  const int size_;
  const double seconds_;
  Group group_;
};

std::vector<Cell> cells_of(int size, const std::string& name, const std::string& sizes,
                           const std::string& dtypes, bool is_lent) {
  std::vector<Cell> cells;
  for (const Operation& operation : kOperations) {
    if (name != "all" && name != operation.name) continue;
    if (operation.kind == RequestKind::kSend && size != 2) continue;
    for (int code = 0; code < kDTypeCount; ++code) {
      const auto dtype = static_cast<DType>(code);
      const std::string wanted = dtype_name(dtype);
      if (dtypes != "every" && dtypes != wanted) continue;
      for (const char* at = sizes.c_str(); *at != '\0';) {
        char* end = nullptr;
        cells.push_back({operation, std::strtoull(at, &end, 10), dtype, is_lent});
        if (end == at) std::abort();
        at = *end == ',' ? end + 1 : end;
      }
    }
  }
  return cells;
}

}  // namespace
}  // namespace standfast

int main(int argc, char** argv) {
  using namespace standfast;
  const auto argument = [&](int at, const char* otherwise) {
    return std::string(argc > at ? argv[at] : otherwise);
  };
  const int size = std::atoi(argument(1, "2").c_str());
  const std::vector<Cell> cells = cells_of(
      size, argument(2, "all"), argument(3, "8,1024,32768,262144,1048576,16777216,67108864"),
      argument(4, "float32"), argument(6, "") == "lent");
  const double seconds = std::atof(argument(5, "0.2").c_str());
  if (size < 2 || cells.empty()) {
    std::fprintf(stderr,
                 "usage: shm_bench RANKS [OPERATION [BYTES,... [DTYPE [SECONDS [lent]]]]]\n");
    return 2;
  }
  std::vector<GroupConfig> configs = configure(size);
  int rank = 0;
  for (int other = 1; other < size && rank == 0; ++other) {
    if (fork() == 0) rank = other;
  }
  GroupConfig own = std::move(configs[static_cast<std::size_t>(rank)]);
  configs.clear();
  {
    Rank here(std::move(own), seconds);
    for (const Cell& cell : cells) here.measure(cell);
  }
  int failed = 0;
  for (int status = 0; rank == 0 && wait(&status) > 0;) failed |= status;
  return failed;
}
