// What a verbs wire sends: messages of one of two fixed sizes, each with a head that tells where it
// belongs and whether it is whole. Pure; docs/design/verbs.md explains the numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/tag.h"
#include "core/fabric/fabric.h"

namespace standfast::verbs {

// SEND and receive must cover the same number of these on Apple's devices, so that each queue pair
// carries messages of one size only.
inline constexpr std::size_t kUnitBytes = 4096;

enum class Size : std::uint8_t { kSmall, kLarge };
inline constexpr int kSizes = 2;

struct MessageHead {
  std::uint32_t magic;
  // Of the wire, over all its queue pairs: says which message comes next. Not for credits.
  std::uint32_t sequence;
  Tag tag;
  std::uint32_t frame_bytes;
  std::uint32_t offset;  // of this message's payload in its frame
  std::uint32_t key;     // of the wire: no message of another one, or of an earlier one, fits
  // Of the queue pair: a message that was lost, came twice or too early is seen at the next one.
  std::uint32_t ordinal;
  // How many messages of data the sender of this one has made room for since the beginning, on the
  // two queue pairs of the rail on which this goes.
  std::uint32_t room[kSizes];
  std::uint64_t checksum;  // over head and payload; last, and not over itself
};
static_assert(sizeof(MessageHead) == 64);

inline constexpr std::uint32_t kMagic = 0x31765346;  // "FSv1"

constexpr std::size_t message_bytes(Size size) {
  return size == Size::kSmall ? kUnitBytes : kFrameBytes + kUnitBytes;
}
constexpr std::size_t payload_bytes_max(Size size) {
  return size == Size::kSmall ? kUnitBytes - sizeof(MessageHead) : kFrameBytes;
}

// How a frame is cut. Frames of a few pages go as small messages, since a large one is always sent
// whole.
inline constexpr std::size_t kSmallMessagesMax = 4;
constexpr Size size_for(std::size_t frame_bytes, bool has_large) {
  const bool is_short = frame_bytes <= kSmallMessagesMax * payload_bytes_max(Size::kSmall);
  return is_short || !has_large ? Size::kSmall : Size::kLarge;
}

// The payload of the message at `offset` of a frame.
constexpr std::size_t payload_bytes(std::size_t frame_bytes, std::size_t offset, Size size) {
  const std::size_t left = frame_bytes - offset;
  return left < payload_bytes_max(size) ? left : payload_bytes_max(size);
}

// Over the head but for its last field, and the payload. Any change within one word of 8 bytes
// changes it for sure; other damage does so but for a chance of 2^-64.
std::uint64_t checksum_of(const MessageHead& head, const std::byte* payload, std::size_t bytes);
// The same of what is now at `to`, where it copies the payload meanwhile: in one pass, for that is
// most of what a large message costs its sender.
std::uint64_t copy_with_checksum(const MessageHead& head, std::byte* to, const std::byte* payload,
                                 std::size_t bytes);

// What a head that was received promises, checked before any other field is used.
enum class Soundness : std::uint8_t { kGood, kForeign, kOutOfOrder, kDamaged };
struct Expected {
  std::uint32_t key;
  std::uint32_t ordinal;
  Size size;
};
// `landing`: where the payload is copied meanwhile, sound or not; null: nowhere.
Soundness judge(const MessageHead& head, const std::byte* payload, const Expected& expected,
                std::byte* landing = nullptr);

}  // namespace standfast::verbs
