// A small value that one thread writes often and another reads now and then: a sequence lock. The
// writer never waits; a reader that was disturbed reads again.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace standfast {

template <class T>
class Published {
 public:
  // One writer at a time.
  void publish(const T& value) { publish_front(value); }
  // The first words only, which are a Front; the others stay.
  template <class Front>
  void publish_front(const Front& front) {
    constexpr std::size_t kFront = sizeof(Front) / sizeof(std::uint64_t);
    static_assert(kFront * sizeof(std::uint64_t) == sizeof(Front) && kFront <= kWords);
    const auto words = std::bit_cast<std::array<std::uint64_t, kFront>>(front);
    const std::uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kFront; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  T read() const {
    Words words;
    for (;;) {
      const std::uint32_t before = version_.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      const std::uint32_t after = version_.load(std::memory_order_relaxed);
      if (before == after && before % 2 == 0) return std::bit_cast<T>(words);
    }
  }

 private:
  static constexpr std::size_t kWords = sizeof(T) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;
  static_assert(sizeof(Words) == sizeof(T), "whole words only");

  // Odd while the words change. A reader that saw a word of a new value (acquire, from the release
  // above) sees an odd or later version afterwards, and tries again.
  std::atomic<std::uint32_t> version_{0};
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

}  // namespace standfast
