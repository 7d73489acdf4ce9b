// The loops for what every CPU of the architecture has: SSE2 on x86-64, NEON on aarch64.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/reduce/isa.h"

namespace standfast {
namespace {

constexpr std::size_t kVectorBytes = 16;

// Each builds on those before it.
// clang-format off
#include "core/reduce/elements.inc"
#include "core/reduce/bytes.inc"
#include "core/reduce/complex.inc"
#if defined(__aarch64__)
#include "core/reduce/half_neon.inc"
#else
#include "core/reduce/half_soft.inc"
#endif
#include "core/reduce/loops.inc"
#include "core/reduce/table.inc"
// clang-format on

}  // namespace

constinit const ReduceTable kReduceBaseline = make_table();

}  // namespace standfast
