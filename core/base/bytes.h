// Little-endian integers in byte buffers, for frames that cross hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace standfast {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian in memory");

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// memcpy that allows null for zero bytes.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

inline std::byte* as_bytes(void* memory) { return static_cast<std::byte*>(memory); }

inline const std::byte* as_bytes(const void* memory) {
  return static_cast<const std::byte*>(memory);
}

}  // namespace standfast
