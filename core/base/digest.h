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
  // All pieces but the last have a multiple of 32 bytes.
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
  // Each step can be undone, given the word: two inputs that differ in one word stay different.
  static constexpr std::uint64_t mixed(std::uint64_t sum, std::uint64_t word) {
    constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd, so that multiplying loses nothing
    const std::uint64_t product = (sum ^ word) * kFactor;
    return product << 29 | product >> 35;
  }
  // Independent of each other, so that the processor works on them side by side.
  static constexpr int kLanes = 4;
  std::uint64_t lanes_[kLanes] = {1, 2, 3, 4};
};

inline std::uint64_t digest_of(const std::byte* data, std::size_t bytes) {
  Digest digest;
  digest.add(data, bytes);
  return digest.value();
}

}  // namespace standfast
