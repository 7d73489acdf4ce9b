// The control side: a test's words to a fabric, and what it answers. README.md has the commands.
#pragma once

#include <string>
#include <string_view>

#include "emulator/store.h"

namespace standfast::emulator {

// Carries out one command and returns the answer, JSON or empty. Throws std::invalid_argument.
std::string carry_out(const Store& store, std::string_view command);

}  // namespace standfast::emulator
