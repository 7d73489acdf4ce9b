// The thread that moves what waits while the program does something else: hardware does not need to
// be asked. One per process that has a device open.
#pragma once

namespace standfast::emulator {

// Starts it, unless this process has one. A forked child that opens a device gets its own.
void see_to_progress();

}  // namespace standfast::emulator
