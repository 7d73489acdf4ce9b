// How two buffers are combined, element by element, as stock JACCL does it: its ranks and ours
// compute the same results from the same data, each for itself.
#pragma once

#include <cstddef>

#include "core/base/dtype.h"

namespace standfast::jaccl {

// dst[i] = a[i] op b[i]. dst may be exactly a or b. Max is `a > b ? a : b` and min `a < b ? a : b`:
// whether a NaN is handed on depends on the order. Sums of float16 and bfloat16 are rounded each
// time; a sum that is not a number is one, but with bits of our own choice.
using CombineFn = void (*)(std::byte* dst, const std::byte* a, const std::byte* b,
                           std::size_t count, DType dtype);

// nullptr for what JACCL does not have: products, and max and min of complex64.
CombineFn combine_fn(ReduceOp op, DType dtype);

}  // namespace standfast::jaccl
