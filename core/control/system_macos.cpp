#include <libproc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/proc_info.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "core/control/system.h"

namespace standfast {

void limit_connection(int fd, const ConnectionLimits& limits) {
  const int on = 1;
  const int idle_s = idle_for(limits.outage);
  const int interval_s = 3;
  const int probes = probes_for(limits.outage, interval_s);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPALIVE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  // The pause between two attempts can't be bounded there.
  if (limits.unanswered == kNever) return;
  const int limit_s = static_cast<int>((limits.unanswered + kSecond - 1) / kSecond);
  setsockopt(fd, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, &limit_s, sizeof limit_s);
}

std::uint64_t acknowledged_bytes(int fd) {
  tcp_connection_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONNECTION_INFO, &info, &bytes) != 0) return 0;
  return info.tcpi_txbytes - info.tcpi_snd_sbbytes;
}

// The send queue holds what is not acknowledged yet.
bool is_all_acknowledged(int fd) {
  int waiting = 0;
  socklen_t bytes = sizeof waiting;
  return getsockopt(fd, SOL_SOCKET, SO_NWRITE, &waiting, &bytes) == 0 && waiting == 0;
}

// The system does not tell when the last acknowledgement came. Keepalive and the system's own
// retransmission limit bound a cut data connection there.
Nanos unacknowledged_for(int) { return 0; }

Nanos acknowledgement_age(int) { return kNever; }

char process_state(int pid) {
  proc_bsdinfo info{};
  if (proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, &info, sizeof info) != sizeof info) return 0;
  constexpr std::uint32_t kStopped = 4;  // SSTOP
  if (info.pbi_status == kStopped) return (info.pbi_flags & PROC_FLAG_TRACED) != 0 ? 't' : 'T';
  return 'S';
}

std::uint64_t identity_of(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return 0;
  // Sockets have no inode there; the system's change time is the next best.
  return static_cast<std::uint64_t>(status.st_ino) + 1 +
         static_cast<std::uint64_t>(status.st_ctimespec.tv_nsec);
}

}  // namespace standfast
