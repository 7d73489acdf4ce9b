// What the watch decides about a group: kind, rank, cause, evidence, time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/clock.h"

namespace standfast {

enum class VerdictKind : std::uint8_t {
  kNone = 0,
  kDied,
  kLeft,
  kFailed,
  kUnreachable,
  kStalled,
  kLinkLost,
  kNoProgress,
  kMismatch,
  kMessageMismatch,
  kAborted,
  kClosed,
  kInternal,
  kDigestMismatch,
};

// The key of errors.BY_KIND in Python.
constexpr const char* verdict_name(VerdictKind kind) {
  constexpr const char* kNames[] = {
      "none",    "died",      "left",        "failed",         "unreachable",
      "stalled", "link_lost", "no_progress", "mismatch",       "message_mismatch",
      "aborted", "closed",    "internal",    "digest_mismatch"};
  return kNames[static_cast<int>(kind)];
}

// The cause of an orderly goodbye.
inline constexpr const char* kClosedItsGroup = "closed its group";

struct Verdict {
  VerdictKind kind = VerdictKind::kNone;
  int rank = -1;      // whom it is about
  int reporter = -1;  // who saw it
  std::string cause;
  std::string remote_type;  // kFailed: what the program raised
  std::string remote_message;
  std::string remote_traceback;
  std::vector<std::string> evidence;
  Nanos detected_ns = 0;  // when this rank learned of it
};

}  // namespace standfast
