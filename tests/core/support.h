// What the tests of the core share: connected sockets, data that tells where it came from, and
// waiting for something with a deadline.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/fd.h"
#include "tests/core/sockets.h"

namespace standfast::test {

// Longer than anything here takes on a loaded machine: whoever waits so long has lost a wake-up.
inline constexpr Nanos kPatience = 30 * kSecond;

// Sanitizers make everything slower; a bound of processor time is multiplied by this.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowness = 3;
#else
inline constexpr int kSlowness = 1;
#endif

// Asks again and again, but never rests long: what is waited for is seen within a millisecond.
template <class Predicate>
bool eventually(Predicate&& predicate, Nanos limit = kPatience) {
  const Nanos end = deadline_after(now_ns(), limit);
  while (!predicate()) {
    if (now_ns() >= end) return predicate();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// With nothing in stdout's buffer that the child could print a second time.
inline pid_t fork_process() {
  std::cout.flush();
  std::fflush(stdout);
  return checked(fork(), "fork");
}

inline Fd duplicate(const Fd& fd) { return Fd(checked(dup(fd.get()), "dup")); }

// Bytes that differ from place to place and from seed to seed.
inline std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> made(bytes);
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (std::byte& byte : made) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return made;
}

// Threads that are joined whatever happens, so that a failed check ends a test and not the run.
class Threads {
 public:
  Threads() = default;
  ~Threads() { join(); }
  template <class Body>
  void start(Body body) {
    threads_.emplace_back(std::move(body));
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

// Opens a private member to a test, for states that only 2^32 calls would reach otherwise. An
// explicit instantiation may name private members (C++20 [temp.spec.general]/6). In the anonymous
// namespace of the test:
//   SF_REVEAL(SentFrames, ShmWire, std::uint32_t, sent_)    then    wire.*reveal(SentFrames{})
#define SF_REVEAL(Tag, Class, Type, member)              \
  struct Tag {                                           \
    friend Type Class::* reveal(Tag);                    \
  };                                                     \
  template <Type Class::* kMember>                       \
  struct Tag##Opener {                                   \
    friend Type Class::* reveal(Tag) { return kMember; } \
  };                                                     \
  template struct Tag##Opener<&Class::member>;

}  // namespace standfast::test
