// What our ranks add for each other to a message that does not fill its frame: whose it is, and
// which. JACCL leaves those bytes to chance, and stock does not read them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/tag.h"

namespace standfast::jaccl {

struct Stamp {
  std::uint64_t magic;
  std::uint64_t ordinal;    // of the message, on its lane and direction
  std::uint64_t operation;  // the same at both ends
};
static_assert(sizeof(Stamp) == 24);

inline constexpr std::uint64_t kStampMagic = 0x706d6174732d6673;  // "sf-stamp"

// Which operation it is, as far as both ends must agree.
constexpr std::uint64_t operation_digest(OpKind kind, DType dtype, ReduceOp op,
                                         std::uint64_t count) {
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(dtype) << 8 |
         static_cast<std::uint64_t>(op) << 16 | count << 24;
}

// At the end of the frame, if its `bytes` leave room for it.
constexpr bool has_room_for_stamp(std::size_t message, std::size_t bytes) {
  return bytes + sizeof(Stamp) <= message;
}

inline void put_stamp(std::byte* frame, std::size_t message, const Stamp& stamp) {
  std::memcpy(frame + message - sizeof stamp, &stamp, sizeof stamp);
}

inline Stamp stamp_of(const std::byte* frame, std::size_t message) {
  Stamp stamp;
  std::memcpy(&stamp, frame + message - sizeof stamp, sizeof stamp);
  return stamp;
}

}  // namespace standfast::jaccl
