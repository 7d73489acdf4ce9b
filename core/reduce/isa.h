// Inside of core/reduce: the instruction sets the loops are compiled for, and the tables of
// functions that each of those files exports. Tests and benchmarks use it to reach a path the
// run-time choice would not take.
#pragma once

#include "core/reduce/reduce.h"

namespace standfast {

// kBaseline is what every CPU of the architecture can do: SSE2 on x86-64, NEON on aarch64.
enum class Isa { kBaseline, kAvx2, kAvx512 };
inline constexpr int kIsaCount = 3;

struct ReduceEntry {
  ReduceFn reduce = nullptr;
  RingFn ring[3] = {};  // by RingStep
};

struct ReduceTable {
  ReduceEntry entries[4][kDTypeCount] = {};  // by ReduceOp and DType
};

// Constants, so that no code of a file compiled for AVX-512 runs before the CPU was asked.
extern const ReduceTable kReduceBaseline;
extern const ReduceTable kReduceAvx2;    // x86-64 only
extern const ReduceTable kReduceAvx512;  // x86-64 only

const char* isa_name(Isa isa);
bool isa_available(Isa isa);  // compiled in, and this CPU and kernel have it
Isa isa_best();

// nullptr as reduce_fn and ring_fn give it, and where the instruction set is not available.
ReduceFn reduce_fn_for(Isa isa, ReduceOp op, DType dtype);
RingFn ring_fn_for(Isa isa, ReduceOp op, DType dtype, RingStep step);

}  // namespace standfast
