#include "core/jaccl/elements.h"

#include <cstdint>
#include <cstring>

#include "core/reduce/reduce.h"

namespace standfast::jaccl {
namespace {

void add(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t count, DType dtype) {
  const void* const sources[] = {a, b};
  reduce_fn(ReduceOp::kSum, dtype)(dst, sources, 2, count);
}

template <class T>
bool is_less(T a, T b) {
  return a < b;
}

// A float of 16 bits, with `kInfinity` the bits of the positive infinity.
template <std::uint16_t kInfinity>
struct Half {
  std::uint16_t bits;

  bool is_nan() const { return (bits & 0x7fff) > kInfinity; }
  int order() const {
    const int magnitude = bits & 0x7fff;
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
  friend bool is_less(Half a, Half b) {
    return !a.is_nan() && !b.is_nan() && a.order() < b.order();
  }
};

// Memory of the caller's need not be aligned.
template <class T, bool kMax>
void choose(std::byte* dst, const std::byte* a, const std::byte* b, std::size_t count, DType) {
  for (std::size_t i = 0; i < count; ++i) {
    T x;
    T y;
    std::memcpy(&x, a + i * sizeof(T), sizeof(T));
    std::memcpy(&y, b + i * sizeof(T), sizeof(T));
    const bool takes_first = kMax ? is_less(y, x) : is_less(x, y);
    const T result = takes_first ? x : y;
    std::memcpy(dst + i * sizeof(T), &result, sizeof(T));
  }
}

template <bool kMax>
CombineFn choice_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8: return choose<std::uint8_t, kMax>;
    case DType::kInt8: return choose<std::int8_t, kMax>;
    case DType::kInt16: return choose<std::int16_t, kMax>;
    case DType::kInt32: return choose<std::int32_t, kMax>;
    case DType::kInt64: return choose<std::int64_t, kMax>;
    case DType::kUInt16: return choose<std::uint16_t, kMax>;
    case DType::kUInt32: return choose<std::uint32_t, kMax>;
    case DType::kUInt64: return choose<std::uint64_t, kMax>;
    case DType::kFloat16: return choose<Half<0x7c00>, kMax>;
    case DType::kBFloat16: return choose<Half<0x7f80>, kMax>;
    case DType::kFloat32: return choose<float, kMax>;
    case DType::kFloat64: return choose<double, kMax>;
    case DType::kComplex64: return nullptr;
  }
  return nullptr;
}

}  // namespace

CombineFn combine_fn(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::kSum: return add;
    case ReduceOp::kMax: return choice_of<true>(dtype);
    case ReduceOp::kMin: return choice_of<false>(dtype);
    case ReduceOp::kProd: return nullptr;
  }
  return nullptr;
}

}  // namespace standfast::jaccl
