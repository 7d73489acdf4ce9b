// Where a group verifies: what one rank sent is what another has, compared by digests that travel
// behind the data. Off by default.
#pragma once

#include <cstddef>

#include "core/collective/comm.h"

namespace standfast {

// All ranks hold the same `bytes`. If not, kDamaged on all ranks, which name the same one.
Outcome verify_same(Comm& comm, const std::byte* data, std::size_t bytes);

// Behind a message of `bytes` that went from one rank to another: kDamaged at its receiver.
Outcome verify_sent(Comm& comm, int to, const std::byte* data, std::size_t bytes);
Outcome verify_received(Comm& comm, int from, const std::byte* data, std::size_t bytes);

// Behind an all_to_all of blocks of `bytes`: kDamaged where a block is another than its sender's.
Outcome verify_blocks(Comm& comm, const std::byte* in, const std::byte* out, std::size_t bytes);

}  // namespace standfast
