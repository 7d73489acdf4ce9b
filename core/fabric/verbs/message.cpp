#include "core/fabric/verbs/message.h"

#include "core/base/bytes.h"
#include "core/base/digest.h"

namespace standfast::verbs {

std::uint64_t checksum_of(const MessageHead& head, const std::byte* payload, std::size_t bytes) {
  Digest sum;
  sum.add(as_bytes(&head), offsetof(MessageHead, checksum));
  sum.add(payload, bytes);
  return sum.value();
}

Soundness judge(const MessageHead& head, const std::byte* payload, const Expected& expected) {
  if (head.magic != kMagic) return Soundness::kForeign;
  if (head.frame_bytes > kFrameBytes || head.offset > head.frame_bytes) return Soundness::kDamaged;
  const std::size_t bytes = payload_bytes(head.frame_bytes, head.offset, expected.size);
  if (checksum_of(head, payload, bytes) != head.checksum) return Soundness::kDamaged;
  if (head.key != expected.key) return Soundness::kForeign;
  return head.ordinal == expected.ordinal ? Soundness::kGood : Soundness::kOutOfOrder;
}

}  // namespace standfast::verbs
