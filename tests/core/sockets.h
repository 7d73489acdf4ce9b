// Connected sockets, for the tests of the core and for its measurements in bench/.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/fd.h"

namespace standfast::test {

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

}  // namespace standfast::test
