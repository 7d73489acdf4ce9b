// Which connections stay on this host, and what is done to them alone.
#include <arpa/inet.h>
#include <doctest/doctest.h>

#include <string>

#include "core/fabric/tcp/nearby.h"
#include "tests/core/support.h"

namespace standfast {
namespace {

// "10.0.0.1" or "fe80::1".
sockaddr_storage address(const std::string& text) {
  sockaddr_storage made{};
  const bool is_v6 = text.find(':') != std::string::npos;
  made.ss_family = is_v6 ? AF_INET6 : AF_INET;
  void* const to = is_v6 ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(made).sin6_addr)
                         : static_cast<void*>(&reinterpret_cast<sockaddr_in&>(made).sin_addr);
  REQUIRE(inet_pton(made.ss_family, text.c_str(), to) == 1);
  return made;
}

bool are_nearby(const std::string& a, const std::string& b) {
  const sockaddr_storage ours = address(a);
  const sockaddr_storage theirs = address(b);
  return is_nearby(reinterpret_cast<const sockaddr*>(&ours),
                   reinterpret_cast<const sockaddr*>(&theirs));
}

#ifdef TCP_CONGESTION
std::string congestion_control_of(int socket) {
  char name[64] = {};
  socklen_t length = sizeof name;
  test::checked(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length), "getsockopt");
  return name;
}
#endif

}  // namespace

// Nearby are one and the same address, and loopback addresses; nothing that only looks like it.
TEST_CASE("nearby: addresses") {
  CHECK(are_nearby("127.0.0.1", "127.0.0.1"));
  CHECK(are_nearby("127.0.0.1", "127.9.8.7"));
  CHECK(are_nearby("10.0.0.1", "10.0.0.1"));
  CHECK(are_nearby("::1", "::1"));
  CHECK(are_nearby("fe80::1", "fe80::1"));
  CHECK(are_nearby("::ffff:127.0.0.1", "127.0.0.1"));
  CHECK(are_nearby("::ffff:10.0.0.1", "10.0.0.1"));
  CHECK_FALSE(are_nearby("10.0.0.1", "10.0.0.2"));
  CHECK_FALSE(are_nearby("127.0.0.1", "10.0.0.1"));
  CHECK_FALSE(are_nearby("10.127.0.1", "10.127.0.2"));
  CHECK_FALSE(are_nearby("fe80::1", "fe80::2"));
  CHECK_FALSE(are_nearby("::1", "::2"));
}

// A connection over loopback is not paced, whatever the system's default is; one that is no
// network connection at all is left alone.
TEST_CASE("nearby: congestion control") {
  const auto [a, b] = test::socket_pair();
  ease_nearby(a.get());
#ifdef TCP_CONGESTION
  const auto [near, far] = test::tcp_pair();
  ease_nearby(near.get());
  CHECK(congestion_control_of(near.get()) == "reno");
#endif
}

}  // namespace standfast
