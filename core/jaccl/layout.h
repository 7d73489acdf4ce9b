// How the ranks of a JACCL group are joined.
#pragma once

#include <cstdint>

namespace standfast::jaccl {

// kFourKib: all messages are 4 KiB, as before macOS 26.3. kLarge: up to 512 KiB, since then. The
// ranks do not tell each other: it must be the same on all.
enum class Frames : std::uint8_t { kFourKib, kLarge };

// kMesh: a queue pair to each peer. kRing: one to four to the left neighbour (the rank before), and
// as many to the right one.
enum class Form : std::uint8_t { kMesh, kRing };

struct Layout {
  int rank = 0;
  int size = 1;
  Form form = Form::kMesh;
  Frames frames = Frames::kLarge;

  int left() const { return (rank + size - 1) % size; }
  int right() const { return (rank + 1) % size; }
};

}  // namespace standfast::jaccl
