// A fast 64-bit digest, against damage and not against malice. Any change within one word of 8
// bytes changes it for sure; other damage does so but for a chance of 2^-64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/bytes.h"

namespace standfast {

class Digest {
 public:
  // All pieces but the last have a multiple of kStep bytes.
  static constexpr std::size_t kStep = 128;

  void add(const std::byte* from, std::size_t bytes) {
    for (; bytes >= kStep; from += kStep, bytes -= kStep) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::byte* pair = from + 2 * sizeof(std::uint64_t) * lane;
        lanes_[lane] = mixed(lanes_[lane], load<std::uint64_t>(pair)) +
                       load<std::uint64_t>(pair + sizeof(std::uint64_t));
      }
    }
    for (std::size_t lane = 0; bytes > 0; ++lane) {
      const std::size_t step = bytes < sizeof(std::uint64_t) ? bytes : sizeof(std::uint64_t);
      std::uint64_t word = 0;
      std::memcpy(&word, from, step);
      lanes_[lane % kLanes] = mixed(lanes_[lane % kLanes], word);
      from += step;
      bytes -= step;
    }
  }
  std::uint64_t value() const {
    std::uint64_t sum = 0;
    for (std::size_t lane = 0; lane < kLanes / 2; ++lane) {
      sum = mixed(sum, mixed(lanes_[lane], lanes_[lane + kLanes / 2]));
    }
    return sum;
  }

 private:
  // Can be undone given either argument, as an addition can: whichever single word differs, the
  // sum differs. The product spreads each bit over the higher ones, the rotation over the lower.
  static constexpr std::uint64_t mixed(std::uint64_t sum, std::uint64_t word) {
    constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd, so that multiplying loses nothing
    const std::uint64_t product = (sum ^ word) * kFactor;
    return product << 29 | product >> 35;
  }
  // Independent of each other, so that the processor works on them side by side. A lane takes two
  // words per product, for products are what the processor has fewest of.
  static constexpr std::size_t kLanes = 8;
  static_assert(kStep == kLanes * 2 * sizeof(std::uint64_t));
  std::uint64_t lanes_[kLanes] = {1, 2, 3, 4, 5, 6, 7, 8};
};

inline std::uint64_t digest_of(const std::byte* data, std::size_t bytes) {
  Digest digest;
  digest.add(data, bytes);
  return digest.value();
}

}  // namespace standfast
