// Start times from the kernel's process table.
#include <sys/proc.h>
#include <sys/sysctl.h>

#include "emulator/owner.h"

namespace standfast::emulator {

std::uint64_t start_time(int pid) {
  int name[] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, pid};
  kinfo_proc info{};
  std::size_t size = sizeof info;
  if (sysctl(name, 4, &info, &size, nullptr, 0) != 0 || size == 0) return 0;
  if (info.kp_proc.p_stat == SZOMB) return 0;
  const timeval& started = info.kp_proc.p_starttime;
  return static_cast<std::uint64_t>(started.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(started.tv_usec) + 1;
}

}  // namespace standfast::emulator
