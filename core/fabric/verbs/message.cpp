#include "core/fabric/verbs/message.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/digest.h"

namespace standfast::verbs {
namespace {

// Copied, then summed up from the first-level cache. (128 KiB: 3.4 us. One pass after the other
// takes 4.7, the copy alone 2.6.)
constexpr std::size_t kSliceBytes = 4096;
static_assert(kSliceBytes % Digest::kStep == 0);

Digest begun(const MessageHead& head) {
  Digest sum;
  sum.add(as_bytes(&head), offsetof(MessageHead, checksum));
  return sum;
}

}  // namespace

std::uint64_t checksum_of(const MessageHead& head, const std::byte* payload, std::size_t bytes) {
  Digest sum = begun(head);
  sum.add(payload, bytes);
  return sum.value();
}

// The sum is over the copy: what is sent is what was summed up, whatever becomes of the original.
std::uint64_t copy_with_checksum(const MessageHead& head, std::byte* to, const std::byte* payload,
                                 std::size_t bytes) {
  Digest sum = begun(head);
  for (std::size_t done = 0; done < bytes; done += kSliceBytes) {
    const std::size_t step = std::min(kSliceBytes, bytes - done);
    copy_bytes(to + done, payload + done, step);
    sum.add(to + done, step);
  }
  return sum.value();
}

Soundness judge(const MessageHead& head, const std::byte* payload, const Expected& expected,
                std::byte* landing) {
  if (head.magic != kMagic) return Soundness::kForeign;
  if (head.frame_bytes > kFrameBytes || head.offset > head.frame_bytes) return Soundness::kDamaged;
  const std::size_t bytes = payload_bytes(head.frame_bytes, head.offset, expected.size);
  const std::uint64_t sum = landing == nullptr ? checksum_of(head, payload, bytes)
                                               : copy_with_checksum(head, landing, payload, bytes);
  if (sum != head.checksum) return Soundness::kDamaged;
  if (head.key != expected.key) return Soundness::kForeign;
  return head.ordinal == expected.ordinal ? Soundness::kGood : Soundness::kOutOfOrder;
}

}  // namespace standfast::verbs
