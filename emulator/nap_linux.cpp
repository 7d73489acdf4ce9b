#include <sys/prctl.h>

#include "emulator/clock.h"
#include "emulator/nap.h"

namespace standfast::emulator {
namespace {

constexpr std::int64_t kNapNs = 5'000;

}  // namespace

// By default the kernel adds up to 50 us to a thread's sleeps. That would be longer than a peer
// spins, and two that wait for each other would nap in turn for ever. The thread is the program's:
// it gets its slack back.
void nap() {
  const int slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  sleep_ns(kNapNs);
  if (slack_ns > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns), 0, 0, 0);
}

}  // namespace standfast::emulator
