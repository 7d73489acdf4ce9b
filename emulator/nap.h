// A nap of a few microseconds, for a poll that has found nothing for a while.
#pragma once

namespace standfast::emulator {

// May end early, by a signal.
void nap();

}  // namespace standfast::emulator
