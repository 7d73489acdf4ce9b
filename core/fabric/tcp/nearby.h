// What a TCP connection that never leaves this host does not need. Called once per wire.
#pragma once

struct sockaddr;

namespace standfast {

// Both addresses are the same, or both loopback ones: there is no network between them. Pure.
bool is_nearby(const sockaddr* ours, const sockaddr* theirs);

// Takes congestion control's pacing off a connection between nearby addresses. Best effort; does
// nothing to any other connection, nor where the system has no such thing.
void ease_nearby(int socket);

}  // namespace standfast
