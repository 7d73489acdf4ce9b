// Chooses, once per process, the widest loops this CPU can run. Called by the collectives when they
// plan an operation.
#include "core/reduce/reduce.h"

#include "core/reduce/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace standfast {
namespace {

#if defined(__x86_64__)

// Asked by itself: clang before 15 has no name for it in __builtin_cpu_supports.
bool cpu_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// All that the flags of reduce_avx2.cpp allow. __builtin_cpu_supports knows of the kernel's part
// too.
bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

const ReduceTable* table_of(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kBaseline: return &kReduceBaseline;
    case Isa::kAvx2: return cpu_has_avx2() ? &kReduceAvx2 : nullptr;
    case Isa::kAvx512: return cpu_has_avx512() ? &kReduceAvx512 : nullptr;
  }
  return nullptr;
}

#else

const ReduceTable* table_of(Isa isa) { return isa == Isa::kBaseline ? &kReduceBaseline : nullptr; }

#endif

const ReduceEntry& best_entry(ReduceOp op, DType dtype) {
  static const ReduceTable* const table = table_of(isa_best());
  return table->entries[static_cast<int>(op)][static_cast<int>(dtype)];
}

}  // namespace

const char* isa_name(Isa isa) {
  constexpr const char* kNames[kIsaCount] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

bool isa_available(Isa isa) { return table_of(isa) != nullptr; }

Isa isa_best() {
  if (isa_available(Isa::kAvx512)) return Isa::kAvx512;
  if (isa_available(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kBaseline;
}

ReduceFn reduce_fn_for(Isa isa, ReduceOp op, DType dtype) {
  const ReduceTable* table = table_of(isa);
  return table ? table->entries[static_cast<int>(op)][static_cast<int>(dtype)].reduce : nullptr;
}

RingFn ring_fn_for(Isa isa, ReduceOp op, DType dtype, RingStep step) {
  const ReduceTable* table = table_of(isa);
  if (!table) return nullptr;
  return table->entries[static_cast<int>(op)][static_cast<int>(dtype)].ring[static_cast<int>(step)];
}

ReduceFn reduce_fn(ReduceOp op, DType dtype) { return best_entry(op, dtype).reduce; }

RingFn ring_fn(ReduceOp op, DType dtype, RingStep step) {
  return best_entry(op, dtype).ring[static_cast<int>(step)];
}

DType partial_dtype(ReduceOp op, DType dtype) {
  const bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  const bool rounds = op == ReduceOp::kSum || op == ReduceOp::kProd;
  return half && rounds ? DType::kFloat32 : dtype;
}

}  // namespace standfast
