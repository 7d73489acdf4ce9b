#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "core/base/fd.h"
#include "core/control/system.h"

namespace standfast {
namespace {

constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, Linux 6.15

// The C library's tcp_info ends before what newer kernels tell.
struct TcpInfo {
  tcp_info base;
  std::uint64_t pacing_rate;
  std::uint64_t max_pacing_rate;
  std::uint64_t bytes_acked;
};

}  // namespace

void limit_connection(int fd, const ConnectionLimits& limits) {
  const int on = 1;
  const int idle_s = idle_for(limits.outage);
  const int interval_s = 3;
  const int probes = probes_for(limits.outage, interval_s);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  if (limits.retry_pause != kNever) {
    // Older kernels know only the second, which helps less.
    const auto pause_ms = static_cast<int>(limits.retry_pause / kMillisecond);
    setsockopt(fd, IPPROTO_TCP, kRtoMaxMs, &pause_ms, sizeof pause_ms);
    setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  }
  if (limits.unanswered == kNever) return;
  const auto limit_ms = static_cast<unsigned>(limits.unanswered / kMillisecond);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

std::uint64_t acknowledged_bytes(int fd) {
  TcpInfo info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  return bytes >= sizeof info ? info.bytes_acked : 0;
}

bool is_all_acknowledged(int fd) {
  int waiting = 0;
  return ioctl(fd, SIOCOUTQ, &waiting) == 0 && waiting == 0;
}

Nanos unacknowledged_for(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  // Both: what was sent last may just be under way, and an idle connection hears nothing either.
  const std::uint32_t since_ms = info.tcpi_last_ack_recv;
  return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 ? since_ms * kMillisecond : 0;
}

Nanos acknowledgement_age(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return kNever;
  // Where only the way to the host is cut, what it sends still comes, and acknowledges nothing.
  const bool answers = info.tcpi_retransmits == 0 && info.tcpi_probes == 0;
  const bool is_up = info.tcpi_state == TCP_ESTABLISHED;
  return is_up && answers ? info.tcpi_last_ack_recv * kMillisecond : kNever;
}

char process_state(int pid) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const Fd file(open(path, O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return 0;
  char text[512];
  const ssize_t bytes = read(file.get(), text, sizeof text - 1);
  if (bytes <= 0) return 0;
  text[bytes] = '\0';
  // The name before it is in brackets, and may have brackets itself.
  const char* name_end = std::strrchr(text, ')');
  const bool is_whole = name_end != nullptr && name_end[1] == ' ';
  return is_whole ? name_end[2] : '\0';
}

std::uint64_t identity_of(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

}  // namespace standfast
