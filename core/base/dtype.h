// Element types and reduction operators. The codes are JACCL's, so that they can travel on its
// wire.
#pragma once

#include <cstddef>
#include <cstdint>

namespace standfast {

enum class DType : std::uint8_t {
  kBool = 0,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
};

inline constexpr int kDTypeCount = 14;

enum class ReduceOp : std::uint8_t { kSum = 0, kMax, kMin, kProd };

constexpr std::size_t dtype_bytes(DType dtype) {
  constexpr std::uint8_t kBytes[kDTypeCount] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8};
  return kBytes[static_cast<int>(dtype)];
}

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* kNames[kDTypeCount] = {
      "bool",   "int8",   "int16",   "int32",    "int64",   "uint8",   "uint16",
      "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"};
  const int code = static_cast<int>(dtype);  // may come from a damaged frame
  return code < kDTypeCount ? kNames[code] : "unknown";
}

constexpr const char* op_name(ReduceOp op) {
  constexpr const char* kNames[4] = {"sum", "max", "min", "prod"};
  const int code = static_cast<int>(op);
  return code < 4 ? kNames[code] : "unknown";
}

}  // namespace standfast
