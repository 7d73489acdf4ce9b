// What the processes of an emulated fabric share: one memory-mapped file, laid out here.
//
// No locks: a process may die at any instruction. Each word has one writer, or is claimed by
// compare-and-swap with an owner word that tells whether its owner still lives (Budget, Endpoint),
// or is only counted up (Rule). Text is written before the file gets its name and never changes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace standfast::emulator {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kNameMax = 32;
inline constexpr std::size_t kGidsMax = 8;
inline constexpr std::size_t kRulesMax = 64;
inline constexpr std::size_t kBudgetMax = 1024;
inline constexpr std::size_t kDescriptors = 128;
inline constexpr std::size_t kInlineMax = 32;
// Large enough for what JACCL has in flight in one direction (2 messages of 512 KiB), so that a
// receiver that is stopped goes on receiving, as hardware would.
inline constexpr std::size_t kArenaBytes = std::size_t{2} << 20;
// What is copied at once: the sender's next piece and the receiver's last one fit into a small L2.
inline constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
inline constexpr std::size_t kFrameBytes = 4096;

// Who holds a thing: process id and start time in one word; 0: nobody.
using OwnerWord = std::uint64_t;

enum class Profile : std::uint32_t { kApple, kRoce, kInfiniBand };

// What becomes of a send for which no receive is posted, or whose receiver is gone.
enum class Policy : std::uint32_t {
  kCredit,          // it waits; for a receiver that is gone, for ever
  kDrop,            // it completes, and the message is lost
  kAbsentCompletes  // as kCredit, but what is sent to a process that is gone completes
};

enum class Idle : std::uint32_t { kNap, kSpin };

enum class CableState : std::uint32_t {
  kUp,
  kDown,    // pulled: ports are down, and nothing moves; no completion, no event
  kErrors,  // pulled: ports are down, and all requests complete with errors
  kSegv,    // pulled: ports are down, and the next call on a queue pair crashes
  kWedged   // ports stay up, and nothing moves
};

struct Limits {
  std::uint32_t queue_pairs;
  std::uint32_t queue_pairs_told;  // what ibv_query_device says
  std::uint32_t protection_domains;
  std::uint32_t memory_regions;
  std::uint32_t work_requests;  // of one queue
  std::uint32_t window_frames;  // outstanding in one queue, a single message aside
  std::uint32_t message_frames;
  std::uint32_t gather_entries;
};

// A GID in one word, so that it changes as a whole: kind, type, and what distinguishes it.
enum class GidKind : std::uint8_t { kNone, kLinkLocal, kIpv4 };

struct GidEntry {
  GidKind kind = GidKind::kNone;
  std::uint8_t type = 0;    // of ibv_gid_type: 0 InfiniBand, RoCE v1; 2 RoCE v2
  std::uint64_t value = 0;  // 48 bits: the IPv4 address, or the end of the link-local one

  static GidEntry unpack(std::uint64_t word) {
    return {static_cast<GidKind>(word >> 56), static_cast<std::uint8_t>(word >> 48 & 0xff),
            word & ((std::uint64_t{1} << 48) - 1)};
  }
  std::uint64_t pack() const {
    return std::uint64_t{static_cast<std::uint8_t>(kind)} << 56 | std::uint64_t{type} << 48 | value;
  }
};

struct Cable {
  char name[kNameMax];
  std::atomic<std::uint32_t> state;
  // Counted up when the link is made anew: queue pairs connected before are cut off for good.
  std::atomic<std::uint32_t> epoch;
};

// Owner words, one per thing that a device has a limited number of.
struct Budget {
  std::atomic<std::uint32_t> limit;
  std::atomic<OwnerWord> owners[kBudgetMax];
};

struct Port {
  char host[kNameMax];
  char device[kNameMax];
  std::int32_t cable;  // -1: nothing is plugged in
  std::atomic<std::uint32_t> down;
  std::atomic<std::uint32_t> queue_pair_limit;
  std::atomic<std::uint64_t> gids[kGidsMax];
  Budget protection_domains;
  Budget memory_regions;
};

// One piece of a message, in the sender's endpoint. The ticket is stored last, and tells the
// receiver that the rest is there; it reads the line only then.
struct alignas(kLine) Descriptor {
  std::atomic<std::uint64_t> ticket;  // the piece's number, from 1
  std::uint32_t message_bytes;
  std::uint32_t bytes;
  std::uint32_t offset;  // in the arena, unless it is small enough to stand here
  std::uint16_t first;
  std::uint16_t last;
  std::uint32_t immediate;
  std::uint32_t has_immediate;
  std::byte small[kInlineMax];
};
static_assert(sizeof(Descriptor) == kLine);

// How often things have happened at a port; the sum over its endpoints. One writer: the owner.
enum class Count : std::uint32_t {
  kSent,
  kSentBytes,
  kReceived,
  kReceivedBytes,
  kLost,
  kDuplicated,
  kCorrupted,
  kTruncated,
  kDelayed,
  kReordered,
  kNoReceive,
  kAbsent,
  kFrameMismatch,
  kErrors,
  kEnd
};
inline constexpr std::size_t kCounts = static_cast<std::size_t>(Count::kEnd);

// One queue pair's place: who has it, and what it sends. Written by the owner, read by the peer.
struct Endpoint {
  std::atomic<OwnerWord> owner;
  // Low 8 bits: part of the queue pair's number. Above: how often it was reset.
  std::atomic<std::uint32_t> incarnation;
  std::atomic<std::uint32_t> state;

  // As receiver: receives posted, and pieces taken out of the peer's arena, since it was made.
  alignas(kLine) std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> consumed;

  alignas(kLine) std::atomic<std::uint64_t> counts[kCounts];

  alignas(kLine) Descriptor descriptors[kDescriptors];
};

enum class RuleState : std::uint32_t { kFree, kWriting, kActive };

// A fault to come. Written by the control side before it is active; processes count `seen` up.
struct Rule {
  std::atomic<std::uint32_t> state;
  std::uint32_t kind;   // FaultKind
  std::uint32_t call;   // Call, for faults inside calls
  std::int32_t port;    // -1: any
  char host[kNameMax];  // "": any
  std::uint64_t first;  // it applies to events first .. first + count - 1, from 0,
  std::uint64_t count;
  std::uint64_t chance;  // each with this chance of 2^32
  std::uint64_t seed;
  std::int64_t parameter;  // nanoseconds, byte, status or number
  std::atomic<std::uint64_t> seen;
  std::atomic<std::uint64_t> applied;
};

struct Header {
  std::uint64_t magic;
  std::uint64_t file_bytes;
  std::uint32_t hosts;
  std::uint32_t ports;
  std::uint32_t cables;
  std::uint32_t endpoints_per_port;
  Profile profile;
  Policy policy;
  std::uint32_t early_receives_refused;
  Limits limits;
  std::atomic<std::uint32_t> idle;
  std::atomic<std::uint32_t> trace;
  std::atomic<std::uint32_t> rules_active;  // 0: nobody needs to look at them
  Rule rules[kRulesMax];
};

}  // namespace standfast::emulator
