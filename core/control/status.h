// What a rank is doing, as its beats tell it to the others.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "core/base/clock.h"
#include "core/base/tag.h"

namespace standfast {

// What one half of a rank does. [0] in Status: collectives and receives; [1]: sends.
struct Activity {
  Tag tag;                // the latest operation
  bool running = false;   // it has not ended
  int waiting_for = -1;   // the rank that a wait is for; -1: it does not wait, or not for long
  Nanos waited = 0;       // for how long, without a frame coming in
  bool receives = false;  // a message is a recv here

  bool waits() const { return running && waiting_for >= 0; }
};

// Progress that the program itself tells, where it does not use our operations.
struct ProgramBeat {
  bool busy = false;
  std::uint64_t step = 0;
  Nanos age = 0;  // of the latest
  std::string label;
};

struct Status {
  Status() { halves[0].receives = true; }

  std::uint32_t started = 0;   // collectives
  std::uint32_t finished = 0;  // collectives
  std::uint64_t digest = 0;    // of all collectives begun, in their order
  Activity halves[2];
  ProgramBeat program;

  bool waits() const { return halves[0].waits() || halves[1].waits(); }
  bool runs() const { return halves[0].running || halves[1].running; }
  bool began_anything() const {
    return started > 0 || halves[0].tag.kind != OpKind::kNone ||
           halves[1].tag.kind != OpKind::kNone || program.step > 0 || program.busy;
  }
};

// "all_sum float32[8] #42", "recv(tag=0) uint8[1] #3".
inline std::string describe(const Activity& half) {
  std::string text = describe(half.tag);
  if (half.receives && half.tag.kind == OpKind::kSend) text.replace(0, 4, "recv");
  return text;
}

// The digest after one more collective. Computed by every collective, so one product per call: what
// this one adds as it is, the next one spreads. Number and kinds, root, and count are put together
// without loss as long as a count has less than 40 bits and a root less than 24.
constexpr std::uint64_t digest_after(std::uint64_t digest, const Tag& tag) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  const auto [kinds, root, count] = std::bit_cast<std::array<std::uint64_t, 3>>(tag);
  return std::rotl((digest ^ kinds) * kOdd, 29) ^ std::rotl(root, 40) ^ count;
}

}  // namespace standfast
