// What the tests of the core share: connected sockets, data that tells where it came from, and
// waiting for something with a deadline.
#pragma once

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
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

inline int checked(int result, const char* call) {
  if (result < 0) throw SystemError(call, errno);
  return result;
}

inline void set_option(int fd, int level, int option, int value) {
  checked(setsockopt(fd, level, option, &value, sizeof value), "setsockopt");
}

// Connected and non-blocking.
inline std::pair<Fd, Fd> socket_pair() {
  int ends[2];
  checked(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  for (const int fd : ends) prepare_socket(fd);
  return {Fd(ends[0]), Fd(ends[1])};
}

// Over loopback, connected and non-blocking. `buffer_bytes`: as small as the system allows that.
inline std::pair<Fd, Fd> tcp_pair(int buffer_bytes = 0) {
  Fd listener(checked(socket(AF_INET, SOCK_STREAM, 0), "socket"));
  Fd caller(checked(socket(AF_INET, SOCK_STREAM, 0), "socket"));
  if (buffer_bytes > 0) {
    for (const int fd : {listener.get(), caller.get()}) {
      // Segments that are small beside the buffers, or silly-window avoidance makes it crawl.
      set_option(fd, IPPROTO_TCP, TCP_MAXSEG, 536);
      set_option(fd, SOL_SOCKET, SO_SNDBUF, buffer_bytes);
      set_option(fd, SOL_SOCKET, SO_RCVBUF, buffer_bytes);
    }
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  checked(bind(listener.get(), generic, length), "bind");
  checked(listen(listener.get(), 1), "listen");
  checked(getsockname(listener.get(), generic, &length), "getsockname");
  checked(connect(caller.get(), generic, length), "connect");
  Fd callee(checked(accept(listener.get(), nullptr, nullptr), "accept"));
  for (const int fd : {caller.get(), callee.get()}) {
    prepare_socket(fd);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  }
  return {std::move(caller), std::move(callee)};
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
