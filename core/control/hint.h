// What one rank sees by itself of another, and everybody may know: nobody is ended by it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/clock.h"

namespace standfast {

enum class HintKind : std::uint8_t {
  kNone = 0,
  kSilent,       // no sign of life, and nothing known of its host
  kFrozen,       // no sign of life, but its host answers
  kUnreachable,  // no sign of life, and its host does not answer
  kLate,         // it lives, and others wait for it in an operation that it has not begun
  kWedged,       // it lives, and others wait for it in an operation that it does not get on with
  kCut,          // its control link is gone, but its data flows
};

// The key of the kind in Python.
constexpr const char* hint_name(HintKind kind) {
  constexpr const char* kNames[] = {"none", "silent", "frozen", "unreachable",
                                    "late", "wedged", "cut"};
  return kNames[static_cast<int>(kind)];
}

struct Hint {
  HintKind kind = HintKind::kNone;
  int rank = -1;      // whom it is about
  int reporter = -1;  // who saw it
  std::string cause;
  std::vector<std::string> evidence;
  Nanos since_ns = 0;  // when this rank learned of it
};

}  // namespace standfast
