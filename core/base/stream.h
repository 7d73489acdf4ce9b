// Copying to memory that is not read soon. Called by ShmWire and collective/ for large results.
#pragma once

#include <cstddef>

namespace standfast {

// A result of so many bytes has left the caches before anybody reads it. Measured where all the
// caches together hold twice that, and more (docs/design/shm.md).
inline constexpr std::size_t kStreamedBytes = std::size_t{32} << 20;

// As memcpy, but the destination's lines are neither loaded before they are overwritten nor kept in
// the caches, where the processor can do that.
void stream_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace standfast
