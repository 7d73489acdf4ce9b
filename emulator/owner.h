// Whose is it, and does that process still live? A process id alone would be taken for its
// successor.
#pragma once

#include <atomic>
#include <cstdint>

#include "emulator/state.h"

namespace standfast::emulator {

// When the process was started, in a unit of the platform's; 0 where there is no such process, or
// it is dead and only not yet waited for.
std::uint64_t start_time(int pid);

// This process.
OwnerWord own_word();

// Whether the process that wrote the word still lives. False for 0.
bool is_alive(OwnerWord word);

inline int pid_of(OwnerWord word) { return static_cast<int>(word >> 32); }

// Takes an owner word that is free, or whose process is dead. False: it is somebody's.
bool claim(std::atomic<OwnerWord>& word);

// The first place that can be had among the first `limit`; -1: all are somebody's.
int claim_one(Budget& budget);

}  // namespace standfast::emulator
