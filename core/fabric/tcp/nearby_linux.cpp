#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "core/fabric/tcp/nearby.h"

namespace standfast {

// A system that is set to BBR, for the sake of its wide-area traffic, paces what it sends by
// timers: over loopback that halves the bandwidth. Reno is in every kernel, open to every user, and
// does not pace.
void ease_nearby(int socket) {
  sockaddr_storage ends[2] = {};
  auto* const ours = reinterpret_cast<sockaddr*>(&ends[0]);
  auto* const theirs = reinterpret_cast<sockaddr*>(&ends[1]);
  socklen_t lengths[2] = {sizeof ends[0], sizeof ends[1]};
  const bool are_known =
      getsockname(socket, ours, &lengths[0]) == 0 && getpeername(socket, theirs, &lengths[1]) == 0;
  if (!are_known || !is_nearby(ours, theirs)) return;
  constexpr char kUnpaced[] = "reno";
  (void)setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kUnpaced, sizeof kUnpaced - 1);
}

}  // namespace standfast
