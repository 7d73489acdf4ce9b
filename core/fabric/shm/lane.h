// The shared memory of one pair of ranks: two lanes, each a lock-free ring of frames with one
// sender and one receiver. Either process may die at any instruction; nothing here is a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/fabric/fabric.h"
#include "core/fabric/shm/arena.h"
#include "core/fabric/shm/pull.h"

namespace standfast {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::uint32_t kSlots = kFramesInFlight;
static_assert((kSlots & (kSlots - 1)) == 0, "frame numbers wrap at 2^32");

// A frame's payload lies in its head if it has at most this many bytes.
inline constexpr std::size_t kInlineBytes = 32;
// Where the payload of a longer frame lies: in this one of the lane's payloads ...
using PayloadPlace = std::uint32_t;
// ... or in the sender's arena, where its owner left it ...
inline constexpr PayloadPlace kInArena = kSlots;
// ... or elsewhere in the sender's memory, likewise.
inline constexpr PayloadPlace kInProcess = kSlots + 1;

struct PayloadAt {
  PayloadPlace place;
  std::uint64_t at;  // kInArena: from its begin; kInProcess: the address
};

// A frame's head, and its payload if that is small: one cache line, so that a small frame moves as
// one.
struct alignas(kCacheLine) SlotHead {
  // Sender stores the frame's number (from 1) when the frame is complete; receiver loads it.
  // Sequentially consistent against `receiver_asleep`: either the sender sees the sleeper or the
  // sleeper sees the frame.
  std::atomic<std::uint32_t> ready;
  std::uint32_t bytes;
  Tag tag;
  union {
    std::byte inline_payload[kInlineBytes];
    PayloadAt payload;
  };
};
static_assert(sizeof(SlotHead) == kCacheLine);

struct Lane {
  // Receiver stores how many frames it has taken; sender loads it when the ring looks full.
  // Sequentially consistent against `sender_asleep`, as above.
  alignas(kCacheLine) std::atomic<std::uint32_t> freed;
  // Set by the side that is about to sleep, cleared by whoever rings or by the sleeper itself.
  alignas(kCacheLine) std::atomic<std::uint32_t> receiver_asleep;
  // Receiver's watch stores 1 when its group has ended, before its operations can hear of it;
  // sender loads it at the end of each operation, from a line that it has just seen. Relaxed: it
  // says that there is news, and the news comes over the control links.
  std::atomic<std::uint32_t> receiver_ended;
  alignas(kCacheLine) std::atomic<std::uint32_t> sender_asleep;
  // Sender stores 1 after its last frame; receiver loads it before it looks at `ready` a last time,
  // and the other lane's sender when it has no room. Sequentially consistent against the sleepers.
  alignas(kCacheLine) std::atomic<std::uint32_t> closed;
  // Sender stores its arena's name, then 1; receiver loads that (acquire) before the name.
  alignas(kCacheLine) std::atomic<std::uint32_t> has_arena;
  RegionName arena;
  // Receiver stores 1 when it has mapped the sender's arena: from then on the sender may lend.
  // Relaxed: the mapping is the receiver's own affair.
  alignas(kCacheLine) std::atomic<std::uint32_t> maps_arena;
  // Sender stores how it can be pulled from, then 1; receiver loads that (acquire) before the name.
  alignas(kCacheLine) std::atomic<std::uint32_t> has_name;
  PullName name;
  // Receiver stores 1 when it has seen that it can pull from the sender's memory: from then on the
  // sender may lend that. Relaxed: it is the receiver's own affair.
  alignas(kCacheLine) std::atomic<std::uint32_t> can_pull;
  // Receiver stores the number of a frame that it cannot pull. Sequentially consistent against
  // `sender_asleep`.
  std::atomic<std::uint64_t> refused;
  // Sender stores that number when it has copied the frame into a payload after all; receiver loads
  // it before it looks where the payload is. Sequentially consistent against `receiver_asleep`.
  alignas(kCacheLine) std::atomic<std::uint64_t> copied_after_all;
  // Sender stores 1 when it takes back what it has lent, then a fence, then it writes there;
  // receiver reads there, then a fence, then loads this: as in a seqlock, 0 means that it read what
  // was lent.
  alignas(kCacheLine) std::atomic<std::uint32_t> withdrawn;
  SlotHead heads[kSlots];
  // More than one frame's worth is needed only by a receiver that lags: the sender fills the
  // payload that was read last, so that few of them are in use and those stay in the caches.
  alignas(4096) std::byte payloads[kSlots][kFrameBytes];
};

struct Segment {
  Lane lanes[2];  // [0]: from the lower rank to the higher one
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace standfast
