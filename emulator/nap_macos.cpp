#include "emulator/clock.h"
#include "emulator/nap.h"

namespace standfast::emulator {

void nap() { sleep_ns(5'000); }

}  // namespace standfast::emulator
