// The loops for AVX2, F16C and FMA, which reduce.cpp takes after asking the CPU. x86-64 only.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/reduce/isa.h"

namespace standfast {
namespace {

constexpr std::size_t kVectorBytes = 32;

// Each builds on those before it.
// clang-format off
#include "core/reduce/elements.inc"
#include "core/reduce/bytes.inc"
#include "core/reduce/complex.inc"
#include "core/reduce/half_avx2.inc"
#include "core/reduce/loops.inc"
#include "core/reduce/table.inc"
// clang-format on

}  // namespace

constinit const ReduceTable kReduceAvx2 = make_table();

}  // namespace standfast
