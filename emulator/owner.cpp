#include "emulator/owner.h"

#include <unistd.h>

#include <algorithm>

namespace standfast::emulator {

OwnerWord own_word() {
  // Asked each time: a forked child is another process. One number per thread is remembered.
  thread_local int known_pid = 0;
  thread_local OwnerWord known = 0;
  const int pid = getpid();
  if (pid != known_pid) {
    known = std::uint64_t{static_cast<std::uint32_t>(pid)} << 32 | (start_time(pid) & 0xffffffff);
    known_pid = pid;
  }
  return known;
}

bool is_alive(OwnerWord word) {
  if (word == 0) return false;
  const std::uint64_t started = start_time(pid_of(word));
  return started != 0 && (started & 0xffffffff) == (word & 0xffffffff);
}

bool claim(std::atomic<OwnerWord>& word) {
  OwnerWord seen = word.load(std::memory_order_acquire);
  if (seen != 0 && is_alive(seen)) return false;
  // Acquire: what the former owner wrote comes before what we write.
  return word.compare_exchange_strong(seen, own_word(), std::memory_order_acq_rel);
}

int claim_one(Budget& budget) {
  const std::uint32_t limit = std::min<std::uint32_t>(budget.limit.load(), kBudgetMax);
  for (std::uint32_t i = 0; i < limit; ++i) {
    // Own ones are skipped without asking the system about a process, hundreds of times.
    if (budget.owners[i].load(std::memory_order_relaxed) == own_word()) continue;
    if (claim(budget.owners[i])) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace standfast::emulator
