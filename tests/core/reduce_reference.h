// What the reductions must give, in plain slow code that shares nothing with core/reduce: long
// double and ldexp for the floats, arithmetic modulo 2^64 for the integers. Used by
// reduce_test.cpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/dtype.h"

namespace reference {

using standfast::DType;
using standfast::dtype_bytes;
using standfast::ReduceOp;
using Bytes = std::vector<unsigned char>;

// A binary floating-point format: bits of the whole, of the stored mantissa, and the exponent bias.
struct Format {
  int bits, mantissa, bias;
  std::uint64_t sign() const { return std::uint64_t{1} << (bits - 1); }
  std::uint64_t infinity() const {
    return ((std::uint64_t{1} << (bits - 1 - mantissa)) - 1) << mantissa;
  }
  std::uint64_t nan() const { return infinity() | std::uint64_t{1} << (mantissa - 1); }
  bool is_nan(std::uint64_t value) const { return (value & ~sign()) > infinity(); }
};

inline Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {16, 10, 15};
    case DType::kBFloat16: return {16, 7, 127};
    case DType::kFloat64: return {64, 52, 1023};
    default: return {32, 23, 127};  // float32, and the parts of complex64
  }
}

inline long double decode(Format format, std::uint64_t bits) {
  const std::uint64_t magnitude = bits & ~format.sign();
  const int exponent = static_cast<int>(magnitude >> format.mantissa);
  const std::uint64_t fraction = magnitude & ((std::uint64_t{1} << format.mantissa) - 1);
  const long double sign = (bits & format.sign()) != 0 ? -1.0L : 1.0L;
  if (magnitude > format.infinity()) return std::numeric_limits<long double>::quiet_NaN();
  if (magnitude == format.infinity()) return sign * std::numeric_limits<long double>::infinity();
  const std::uint64_t whole =
      exponent == 0 ? fraction : fraction | std::uint64_t{1} << format.mantissa;
  const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa;
  return sign * std::ldexp(static_cast<long double>(whole), power);
}

// To nearest, ties to even (nearbyint in the default rounding mode); every NaN becomes the one
// quiet NaN.
inline std::uint64_t encode(Format format, long double value) {
  if (std::isnan(value)) return format.nan();
  const std::uint64_t sign = std::signbit(value) ? format.sign() : 0;
  const long double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | format.infinity();
  const int exponent_min = 1 - format.bias;
  const int exponent = std::ilogb(magnitude) < exponent_min ? exponent_min : std::ilogb(magnitude);
  const long double units = std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent));
  // Mantissa and exponent are added, not joined: a mantissa that was rounded up to a power of two
  // carries over.
  const std::uint64_t biased = static_cast<std::uint64_t>(exponent - exponent_min)
                               << format.mantissa;
  const std::uint64_t result = static_cast<std::uint64_t>(units) + biased;
  return sign | (result > format.infinity() ? format.infinity() : result);
}

inline std::uint64_t bits_at(const unsigned char* from, std::size_t bytes) {
  std::uint64_t bits = 0;
  for (std::size_t k = 0; k < bytes; ++k) bits |= static_cast<std::uint64_t>(from[k]) << (8 * k);
  return bits;
}

inline void put_bits(unsigned char* to, std::uint64_t bits, std::size_t bytes) {
  for (std::size_t k = 0; k < bytes; ++k) to[k] = static_cast<unsigned char>(bits >> (8 * k));
}

// One operation, rounded to float32. A double is wide enough for its rounding not to matter.
inline float float_op(ReduceOp op, float a, float b) {
  const double wide_a = a, wide_b = b;
  return static_cast<float>(op == ReduceOp::kSum ? wide_a + wide_b : wide_a * wide_b);
}

inline std::uint64_t sum_or_product(ReduceOp op, DType dtype,
                                    const std::vector<std::uint64_t>& values) {
  const Format format = format_of(dtype);
  if (dtype == DType::kFloat64) {
    double result = static_cast<double>(decode(format, values[0]));
    for (std::size_t k = 1; k < values.size(); ++k) {
      const volatile double next = static_cast<double>(decode(format, values[k]));
      result = op == ReduceOp::kSum ? result + next : result * next;
    }
    return encode(format, result);
  }
  float result = static_cast<float>(decode(format, values[0]));
  for (std::size_t k = 1; k < values.size(); ++k) {
    result = float_op(op, result, static_cast<float>(decode(format, values[k])));
  }
  return encode(format, result);
}

// Whether the float `a` comes after `b` in the order of `op`: NaN after all else (in an order among
// themselves that is nobody's business but must be one), -0 before +0.
inline bool float_wins(ReduceOp op, Format format, std::uint64_t a, std::uint64_t b) {
  if (format.is_nan(a) || format.is_nan(b)) return format.is_nan(a) && !format.is_nan(b);
  const long double x = decode(format, a), y = decode(format, b);
  const bool a_is_below = x < y || (x == y && std::signbit(x) && !std::signbit(y));
  const bool b_is_below = y < x || (x == y && std::signbit(y) && !std::signbit(x));
  return op == ReduceOp::kMax ? b_is_below : a_is_below;
}

inline std::uint64_t integer_op(ReduceOp op, bool is_signed, std::size_t bytes, std::uint64_t a,
                                std::uint64_t b) {
  const int unused = static_cast<int>(64 - 8 * bytes);
  const auto extended = [&](std::uint64_t x) {
    return static_cast<std::int64_t>(x << unused) >> unused;
  };
  const bool a_is_greater = is_signed ? extended(a) > extended(b) : a > b;
  switch (op) {
    case ReduceOp::kSum: return a + b;
    case ReduceOp::kProd: return a * b;
    case ReduceOp::kMax: return a_is_greater ? a : b;
    case ReduceOp::kMin: return a_is_greater ? b : a;
  }
  return 0;
}

inline std::uint64_t mask_of(std::size_t bytes) {
  return bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
}

inline std::uint64_t complex_product(std::uint64_t a, std::uint64_t b) {
  const Format format = format_of(DType::kFloat32);
  const auto part = [&](std::uint64_t bits) {
    return static_cast<float>(decode(format, bits & 0xffffffff));
  };
  const auto times = [](float x, float y) { return float_op(ReduceOp::kProd, x, y); };
  const float ar = part(a), ai = part(a >> 32), br = part(b), bi = part(b >> 32);
  const float real = float_op(ReduceOp::kSum, times(ar, br), -times(ai, bi));
  const float imag = float_op(ReduceOp::kSum, times(ar, bi), times(ai, br));
  return encode(format, real) | encode(format, imag) << 32;
}

inline std::uint64_t complex_reduction(ReduceOp op, const std::vector<std::uint64_t>& values) {
  std::vector<std::uint64_t> real, imag;
  for (std::uint64_t value : values)
    real.push_back(value & 0xffffffff), imag.push_back(value >> 32);
  if (op == ReduceOp::kSum || values.size() == 1) {
    return sum_or_product(op, DType::kFloat32, real) | sum_or_product(op, DType::kFloat32, imag)
                                                           << 32;
  }
  std::uint64_t result = values[0];
  for (std::size_t k = 1; k < values.size(); ++k) result = complex_product(result, values[k]);
  return result;
}

inline std::uint64_t reduce_element(ReduceOp op, DType dtype,
                                    const std::vector<std::uint64_t>& values) {
  const bool rounds = op == ReduceOp::kSum || op == ReduceOp::kProd;
  const bool is_float = dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
                        dtype == DType::kFloat32 || dtype == DType::kFloat64;
  if (dtype == DType::kComplex64) return complex_reduction(op, values);
  if (is_float && rounds) return sum_or_product(op, dtype, values);
  const bool is_signed = dtype >= DType::kInt8 && dtype <= DType::kInt64;
  const std::size_t bytes = dtype_bytes(dtype);
  std::uint64_t result = dtype == DType::kBool ? values[0] != 0 : values[0];
  for (std::size_t k = 1; k < values.size(); ++k) {
    if (is_float) {
      if (float_wins(op, format_of(dtype), values[k], result)) result = values[k];
    } else if (dtype == DType::kBool) {
      const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
      result = any ? (result | (values[k] != 0)) : (result & (values[k] != 0));
    } else {
      result = integer_op(op, is_signed, bytes, result, values[k]) & mask_of(bytes);
    }
  }
  return result;
}

inline Bytes reduce(ReduceOp op, DType dtype, const std::vector<Bytes>& sources, int n) {
  const std::size_t bytes = dtype_bytes(dtype);
  Bytes result(sources[0].size());
  std::vector<std::uint64_t> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < result.size(); i += bytes) {
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = bits_at(&sources[k][i], bytes);
    put_bits(&result[i], reduce_element(op, dtype, values), bytes);
  }
  return result;
}

}  // namespace reference
