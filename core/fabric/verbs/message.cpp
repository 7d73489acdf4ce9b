#include "core/fabric/verbs/message.h"

#include <cstring>

#include "core/base/bytes.h"

namespace standfast::verbs {
namespace {

constexpr int kLanes = 4;
constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd, so that multiplying loses nothing

constexpr std::uint64_t rotated(std::uint64_t word) { return word << 29 | word >> 35; }

// Each step can be undone, given the word: two inputs that differ in one word stay different.
constexpr std::uint64_t mixed(std::uint64_t sum, std::uint64_t word) {
  return rotated((sum ^ word) * kFactor);
}

// Independent lanes, which the processor works on side by side.
class Sum {
 public:
  void add(const std::byte* from, std::size_t bytes) {
    constexpr std::size_t kStep = kLanes * sizeof(std::uint64_t);
    for (; bytes >= kStep; from += kStep, bytes -= kStep) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes_[lane] = mixed(lanes_[lane], load<std::uint64_t>(from + 8 * lane));
      }
    }
    for (int lane = 0; bytes > 0; ++lane) {
      const std::size_t step = bytes < 8 ? bytes : 8;
      std::uint64_t word = 0;
      std::memcpy(&word, from, step);
      lanes_[lane] = mixed(lanes_[lane], word);
      from += step;
      bytes -= step;
    }
  }
  std::uint64_t value() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : lanes_) sum = mixed(sum, lane);
    return sum;
  }

 private:
  std::uint64_t lanes_[kLanes] = {1, 2, 3, 4};
};

}  // namespace

std::uint64_t checksum_of(const MessageHead& head, const std::byte* payload, std::size_t bytes) {
  Sum sum;
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
