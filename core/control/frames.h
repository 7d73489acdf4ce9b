// What travels on a control link: a head of 64 bytes, then texts or a status. Used by the watch
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/control/hint.h"
#include "core/control/status.h"
#include "core/control/verdict.h"

namespace standfast {

enum class FrameType : std::uint8_t {
  kGoodbye = 1,  // the sender leaves in order; verdict.cause says how
  kReport,       // to rank 0: this is what I saw, decide
  kVerdict,      // from rank 0: this is decided
  kLeft,         // from rank 0: verdict.rank said goodbye
  kBeat,         // I live, and this is my status
  kAsk,          // from rank 0: send a beat at once
  kHint,         // from rank 0: this is suspected of hint.rank
  kHintOver,     // from rank 0: no longer
};

// A rank that never left takes part in all of them.
inline constexpr std::uint32_t kEveryCollective = UINT32_MAX;

struct Frame {
  FrameType type = FrameType::kGoodbye;
  std::uint32_t generation = 0;
  // A report of a broken data wire is no verdict yet; the machine looks for the reason first.
  bool suspicion = false;
  // kGoodbye, kLeft: how many collectives the rank took part in before it left.
  std::uint32_t collectives = kEveryCollective;
  Verdict verdict;
  // kBeat. From rank 0: `subject` is a rank of which nothing was heard for long. In answers:
  // how long ago its data came, or kNever.
  Status status;
  int subject = -1;
  Nanos data_age = kNever;
  // kHint, kHintOver.
  Hint hint;
};

inline constexpr std::size_t kFrameHeadBytes = 64;
inline constexpr std::size_t kFrameTextMax = 64 * 1024;

std::vector<std::byte> encode(const Frame& frame);

// Collects bytes of one link and takes frames off. A stream that is none of ours is said once and
// for all.
class FrameReader {
 public:
  void append(const std::byte* bytes, std::size_t count);
  std::optional<Frame> next();
  bool is_garbage() const { return garbage_; }

 private:
  std::vector<std::byte> buffer_;
  bool garbage_ = false;
};

}  // namespace standfast
