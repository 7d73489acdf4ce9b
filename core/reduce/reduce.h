// The element loops of every reduction. Pure functions of memory; called by the collectives, in
// their thread. The rules and their reasons: docs/design/reduce.md.
#pragma once

#include <cstddef>

#include "core/base/dtype.h"

namespace standfast {

// dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[n-1][i], always in that order, so that all ranks
// hold the same bits, on every CPU. n >= 1. Pointers need no alignment at all. dst may be exactly
// one of the srcs; other overlaps are not allowed.
//
// float16 and bfloat16 sums and products accumulate in float32 and round once, to nearest even.
// A sum or product that is not a number is the one NaN: positive, quiet, no payload.
// Max and min hand on a NaN as it is, put -0 below +0, and do not depend on the order of the
// sources. Any non-zero byte is true; sums and maxima of bool are `or`, products and minima `and`.
// Integers wrap. Products of complex64 are the plain formula.
using ReduceFn = void (*)(void* dst, const void* const* srcs, int n, std::size_t count);

// nullptr where the reduction has no meaning: max and min of complex64.
ReduceFn reduce_fn(ReduceOp op, DType dtype);

// The type in which partial results travel around a ring: float32 for float16 and bfloat16 sums and
// products, else the dtype itself.
DType partial_dtype(ReduceOp op, DType dtype);

// One step of a ring: `a` is what earlier ranks contributed, `b` this rank's own elements (of the
// user's dtype). dst may be exactly `a` or `b` where it has the same dtype.
enum class RingStep {
  kFirst,   // a: user dtype,    dst: partial dtype
  kMiddle,  // a: partial dtype, dst: partial dtype
  kLast,    // a: partial dtype, dst: user dtype
};
using RingFn = void (*)(void* dst, const void* a, const void* b, std::size_t count);
RingFn ring_fn(ReduceOp op, DType dtype, RingStep step);

}  // namespace standfast
