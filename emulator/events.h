// Channels by which a program sleeps until something has happened.
#pragma once

#include "emulator/objects.h"

namespace standfast::emulator {

// [0] to read, [1] to write, which never blocks.
bool make_channel_pipe(int (&ends)[2]);

// RoCE: a port that has come or gone is an event. What Apple's stack tells is not known: nothing.
void tell_port_change(EmulatedContext& context);

}  // namespace standfast::emulator
