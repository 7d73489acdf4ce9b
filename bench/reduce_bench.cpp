// Speed of the reduction loops: GB/s of memory traffic (every source read once, the result written
// once), beside memcpy's (one read, one write). One thread, the best of many short rounds over all
// cells. Every array begins 16 bytes after a page, as NumPy's large ones do.
// With the core built (cmake -B build/core-plain -DSTANDFAST_MODULE=OFF && cmake --build
// build/core-plain --target standfast_core), in the top directory:
//   g++ -std=c++20 -O2 -I. bench/reduce_bench.cpp build/core-plain/*.a -o /tmp/reduce_bench
// Arguments: [number of sources, default 2] [ring: the three ring steps of a sum instead].
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/reduce/isa.h"

namespace {

using namespace standfast;

constexpr int kSourcesMax = 16;
constexpr int kRounds = 60;
constexpr std::size_t kPage = 4096;

// Zeros: no loop but the baseline's float16 depends on the data.
class Array {
 public:
  explicit Array(std::size_t bytes) : memory_(bytes + 2 * kPage, 0) {
    begin_ = kPage - reinterpret_cast<std::uintptr_t>(memory_.data()) % kPage + 16;
  }
  void* data() { return memory_.data() + begin_; }

 private:
  std::vector<unsigned char> memory_;
  std::size_t begin_;
};

struct Chunk {
  Chunk(std::size_t chunk_bytes, int repeats_per_round)
      : bytes(chunk_bytes), repeats(repeats_per_round), dst(chunk_bytes) {
    for (int k = 0; k < kSourcesMax; ++k) sources.emplace_back(chunk_bytes);
    for (int k = 0; k < kSourcesMax; ++k) srcs[k] = sources[static_cast<std::size_t>(k)].data();
  }
  std::size_t bytes;
  int repeats;
  Array dst;
  std::vector<Array> sources;
  const void* srcs[kSourcesMax];
};

struct Cell {
  std::string row;
  Chunk* chunk;
  std::function<void()> work;  // empty: this reduction has no meaning
  double bytes_moved;
  double seconds_best = 1e9;
};

double seconds_now() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_start).count();
}

// All cells in turn, so that a busy moment of the machine does not spoil one cell only.
void measure(std::vector<Cell>& cells) {
  for (int round = 0; round < kRounds; ++round) {
    for (Cell& cell : cells) {
      if (!cell.work) continue;
      cell.work();
      const double start = seconds_now();
      for (int i = 0; i < cell.chunk->repeats; ++i) cell.work();
      const double seconds = (seconds_now() - start) / cell.chunk->repeats;
      if (seconds < cell.seconds_best) cell.seconds_best = seconds;
    }
  }
}

void print(const std::vector<Cell>& cells) {
  std::string row;
  for (const Cell& cell : cells) {
    if (cell.row != row) std::printf("%s%-20s", row.empty() ? "" : "\n", cell.row.c_str());
    row = cell.row;
    if (cell.work) {
      std::printf("%7.1f", cell.bytes_moved / cell.seconds_best / 1e9);
    } else {
      std::printf("%7s", "-");
    }
  }
  std::printf("\n");
}

Cell reduce_cell(Isa isa, ReduceOp op, DType dtype, Chunk& chunk, int n) {
  const double moved = static_cast<double>(chunk.bytes) * (n + 1);
  const std::size_t count = chunk.bytes / dtype_bytes(dtype);
  const ReduceFn reduce = reduce_fn_for(isa, op, dtype);
  Cell cell{std::string(isa_name(isa)) + " " + dtype_name(dtype), &chunk, {}, moved};
  if (reduce) cell.work = [=, &chunk] { reduce(chunk.dst.data(), chunk.srcs, n, count); };
  return cell;
}

Cell ring_cell(Isa isa, RingStep step, DType dtype, Chunk& chunk) {
  const std::size_t user = dtype_bytes(dtype);
  const std::size_t partial = dtype_bytes(partial_dtype(ReduceOp::kSum, dtype));
  const std::size_t moved[3] = {2 * user + partial, 2 * partial + user, partial + 2 * user};
  const std::size_t count = chunk.bytes / partial;
  const RingFn ring = ring_fn_for(isa, ReduceOp::kSum, dtype, step);
  const auto work = [=, &chunk] { ring(chunk.dst.data(), chunk.srcs[0], chunk.srcs[1], count); };
  const double bytes = static_cast<double>(moved[static_cast<int>(step)] * count);
  return {std::string(isa_name(isa)) + " " + dtype_name(dtype), &chunk, work, bytes};
}

void add_row(std::vector<Cell>& cells, Isa isa, DType dtype, Chunk& chunk, int n, bool ring) {
  for (int op = 0; op < 4 && !ring; ++op) {
    cells.push_back(reduce_cell(isa, static_cast<ReduceOp>(op), dtype, chunk, n));
  }
  for (int step = 0; step < 3 && ring; ++step) {
    cells.push_back(ring_cell(isa, static_cast<RingStep>(step), dtype, chunk));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 2;
  const bool ring = argc > 2 && std::string(argv[2]) == "ring";
  if (n < 1 || n > kSourcesMax) return 2;
  Chunk chunks[2] = {{64 << 10, 50}, {16 << 20, 1}};
  std::vector<Cell> cells;
  for (Chunk& chunk : chunks) {
    const auto copy = [&] { std::memcpy(chunk.dst.data(), chunk.srcs[0], chunk.bytes); };
    cells.push_back({"memcpy", &chunk, copy, 2.0 * static_cast<double>(chunk.bytes)});
  }
  for (int isa = 0; isa < kIsaCount; ++isa) {
    if (!isa_available(static_cast<Isa>(isa))) continue;
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (Chunk& chunk : chunks) {
        add_row(cells, static_cast<Isa>(isa), static_cast<DType>(dtype), chunk, n, ring);
      }
    }
  }
  measure(cells);
  std::printf(ring ? "sum: first, middle, last" : "%d sources: sum, max, min, prod", n);
  std::printf("; chunks of 64 KiB, then of 16 MiB; GB/s\n");
  print(cells);
}
