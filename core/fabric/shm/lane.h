// The shared memory of one pair of ranks: two lanes, each a lock-free ring of frames with one
// sender and one receiver. Either process may die at any instruction; nothing here is a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/fabric/fabric.h"

namespace standfast {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::uint32_t kSlots = kFramesInFlight;
static_assert((kSlots & (kSlots - 1)) == 0, "frame numbers wrap at 2^32");

// A frame's head, and its payload if that is small: one cache line, so that a small frame moves as
// one.
struct alignas(kCacheLine) SlotHead {
  // Sender stores the frame's number (from 1) when the frame is complete; receiver loads it.
  // Sequentially consistent against `receiver_asleep`: either the sender sees the sleeper or the
  // sleeper sees the frame.
  std::atomic<std::uint32_t> ready;
  std::uint32_t bytes;
  Tag tag;
  std::byte inline_payload[32];
};
static_assert(sizeof(SlotHead) == kCacheLine);

struct Lane {
  // Receiver stores how many frames it has taken; sender loads it when the ring looks full.
  // Sequentially consistent against `sender_asleep`, as above.
  alignas(kCacheLine) std::atomic<std::uint32_t> freed;
  // Set by the side that is about to sleep, cleared by whoever rings or by the sleeper itself.
  alignas(kCacheLine) std::atomic<std::uint32_t> receiver_asleep;
  alignas(kCacheLine) std::atomic<std::uint32_t> sender_asleep;
  // Sender stores 1 after its last frame; receiver loads it before it looks at `ready` a last time,
  // and the other lane's sender when it has no room. Sequentially consistent against the sleepers.
  alignas(kCacheLine) std::atomic<std::uint32_t> closed;
  SlotHead heads[kSlots];
  alignas(4096) std::byte payloads[kSlots][kFrameBytes];
};

struct Segment {
  Lane lanes[2];  // [0]: from the lower rank to the higher one
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace standfast
