// What the reductions are tested on: arrays of random and of awkward elements, at awkward
// addresses. Used by reduce_test.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "tests/core/reduce_reference.h"

namespace standfast::reduce_inputs {

using reference::Bytes;
using reference::format_of;
using reference::put_bits;

inline constexpr int kSourcesMax = 9;
inline constexpr unsigned kSeed = 20240607;  // printed with each failure, by case_name()
inline constexpr unsigned char kGuard = 0xa5;

inline bool is_float(DType dtype) { return dtype >= DType::kFloat16; }
inline bool rounds(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kProd; }

// Any bits at all, numbers near each other, and the values where things go wrong: signed zeros,
// subnormals, the largest number, infinities, quiet and signalling NaNs of both signs.
inline std::uint64_t random_float(DType dtype, std::mt19937_64& random) {
  const reference::Format format = format_of(dtype);
  const std::uint64_t one = static_cast<std::uint64_t>(format.bias) << format.mantissa;
  const std::uint64_t sign = random() % 2 * format.sign();
  const std::uint64_t infinity = format.infinity(),
                      smallest_normal = std::uint64_t{1} << format.mantissa;
  const std::uint64_t special[] = {0,
                                   1,
                                   smallest_normal - 1,
                                   one,
                                   one + 1,
                                   infinity - 1,
                                   infinity,
                                   infinity + 1,
                                   format.nan() + 1};
  switch (random() % 8) {
    case 0: return sign | special[random() % std::size(special)];
    case 1: return random();
    default: return sign | (one + random() % (16 * smallest_normal) - 8 * smallest_normal);
  }
}

inline std::uint64_t random_element(DType dtype, std::mt19937_64& random) {
  if (!is_float(dtype)) return random() % 4 == 0 ? std::uint64_t{0} - random() % 3 : random();
  const std::uint64_t low = random_float(dtype, random);
  return dtype == DType::kComplex64 ? (low & 0xffffffff) | random_float(dtype, random) << 32 : low;
}

// Of several different NaNs, max and min promise only that all paths choose the same: here they
// meet only themselves.
inline std::uint64_t with_nan_of_index(DType dtype, std::uint64_t bits, std::size_t i) {
  const reference::Format format = format_of(dtype);
  const bool nan = is_float(dtype) && format.is_nan(bits & reference::mask_of(dtype_bytes(dtype)));
  return nan ? (i % 2 * format.sign()) | (format.infinity() + 1 + i % 3 * 5) : bits;
}

inline std::vector<Bytes> random_sources(ReduceOp op, DType dtype, std::size_t count) {
  std::mt19937_64 random(kSeed + static_cast<unsigned>(dtype));
  const std::size_t bytes = dtype_bytes(dtype);
  std::vector<Bytes> sources(kSourcesMax, Bytes(count * bytes));
  for (Bytes& source : sources) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = random_element(dtype, random);
      put_bits(&source[i * bytes], rounds(op) ? bits : with_nan_of_index(dtype, bits, i), bytes);
    }
  }
  return sources;
}

// A copy at an address that is `misalignment` past a line, between guard bytes.
struct Misaligned {
  Misaligned(const unsigned char* from, std::size_t bytes, std::size_t misalignment)
      : bytes_(bytes) {
    memory_.assign(bytes + 3 * 64 + misalignment, kGuard);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory_.data()) % 64;
    begin_ = 128 - past + misalignment;
    if (from != nullptr && bytes != 0) std::memcpy(data(), from, bytes);
  }
  unsigned char* data() { return memory_.data() + begin_; }
  bool equals(const unsigned char* expected) {
    return bytes_ == 0 || std::memcmp(data(), expected, bytes_) == 0;
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_, begin_ = 0;
  Bytes memory_;
};

}  // namespace standfast::reduce_inputs
