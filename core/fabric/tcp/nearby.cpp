#include "core/fabric/tcp/nearby.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "core/base/bytes.h"

namespace standfast {
namespace {

// Without its port; an IPv4 address as IPv6 maps it.
using Address = std::array<unsigned char, 16>;
constexpr std::size_t kV4At = 12;

std::optional<Address> address_of(const sockaddr* from) {
  Address made{};
  if (from->sa_family == AF_INET6) {
    copy_bytes(made.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, made.size());
    return made;
  }
  if (from->sa_family != AF_INET) return std::nullopt;
  made[kV4At - 2] = made[kV4At - 1] = 0xff;
  copy_bytes(&made[kV4At], &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
  return made;
}

bool is_loopback(const Address& address) {
  constexpr Address kV6Loopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  Address mapped{};
  mapped[kV4At - 2] = mapped[kV4At - 1] = 0xff;
  mapped[kV4At] = 127;
  const bool is_v4_loopback =
      std::equal(mapped.begin(), mapped.begin() + kV4At + 1, address.begin());
  return is_v4_loopback || address == kV6Loopback;
}

}  // namespace

bool is_nearby(const sockaddr* ours, const sockaddr* theirs) {
  const std::optional<Address> here = address_of(ours);
  const std::optional<Address> there = address_of(theirs);
  if (!here || !there) return false;
  return *here == *there || (is_loopback(*here) && is_loopback(*there));
}

}  // namespace standfast
