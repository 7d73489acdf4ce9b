// SIGTERM, where the program left its default: peers are told "interrupted" before the process ends
// by it. A second SIGTERM ends it at once.
#pragma once

namespace standfast::sigterm {

// Takes the signal if its disposition is the default; rings `bell_fd` when it comes. False if
// somebody else has it.
bool enlist(int bell_fd);
// Has it come?
bool pending();
// This watch has said its goodbyes; the last one to say so ends the process.
void served(int bell_fd);
// This watch ends for other reasons.
void resign(int bell_fd);
// In the child of a fork: the signal is nobody's business here.
void forget();

}  // namespace standfast::sigterm
