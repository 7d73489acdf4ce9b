// By which way a frame goes over shared memory, from what is known of its operation. Pure; the
// figures are measured (docs/design/shm.md). Called by ShmWire.
#pragma once

#include <cstddef>

#include "core/base/stream.h"
#include "core/base/tag.h"
#include "core/fabric/fabric.h"

namespace standfast {

// What one rank gives to the operation, or gets of one peer.
inline std::size_t operation_bytes(const Tag& tag) { return tag.count * dtype_bytes(tag.dtype); }

// One side gives, the other takes: the giver has a core to spare, and may copy meanwhile.
inline bool is_one_way(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kBroadcast; }

// Whether a frame may stay where it is until the peer has read it there.
inline bool may_be_lent(const Tag& tag, std::size_t bytes) {
  if (bytes <= kEagerBytes) return false;
  return tag.kind != OpKind::kSend || operation_bytes(tag) > kEagerMessageBytes;
}

// From here on a message is limited by memory, and two cores that copy have more of it than one.
inline constexpr std::size_t kTwoCoresBytes = std::size_t{16} << 20;

// Whether frame number `number` is read by the peer out of the sender's arena. In a long message
// every other one is staged, while the peer reads the one before.
inline bool is_better_lent(const Tag& tag, std::uint64_t number) {
  return !is_one_way(tag.kind) || operation_bytes(tag) < kTwoCoresBytes || number % 2 == 0;
}

// Whether a frame that lies in no arena is better pulled by its receiver than copied twice. Below
// 32 KiB the system call costs more than a copy. Sums gain nothing at most sizes, since what
// is added comes from the cache either way; a broadcast's root would wait before it can go on.
inline bool is_better_pulled(const Tag& tag, std::size_t bytes) {
  constexpr std::size_t kPullBytes = 32 * 1024;
  if (bytes < kPullBytes) return false;
  switch (tag.kind) {
    case OpKind::kAllGather:
    case OpKind::kAllToAll: return true;
    case OpKind::kSend:
      return operation_bytes(tag) > kEagerMessageBytes && operation_bytes(tag) < kTwoCoresBytes;
    default: return false;
  }
}

// Whether a result is so large that to load its lines before they are overwritten is of no use. A
// gather's result has a block of every rank.
inline bool is_streamed(const Tag& tag) {
  const bool gathers = tag.kind == OpKind::kAllGather || tag.kind == OpKind::kAllToAll;
  return operation_bytes(tag) >= (gathers ? kStreamedBytes / 2 : kStreamedBytes);
}

}  // namespace standfast
