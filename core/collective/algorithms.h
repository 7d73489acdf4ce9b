// The operation families, one .cpp each. All pointers are to elements of the operation's dtype; all
// counts are elements. Called by the group, in the thread that holds the halves the operation
// needs.
#pragma once

#include <cstddef>
#include <vector>

#include "core/collective/choose.h"
#include "core/collective/comm.h"

namespace standfast {

// in, out: `count` elements; they may be the same memory.
Outcome all_reduce(Comm& comm, Algorithm algorithm, const Reduction& reduction, const std::byte* in,
                   std::byte* out, std::size_t count);

// in: size * count elements, block k for rank k. out: count elements, elsewhere.
Outcome reduce_scatter(Comm& comm, Algorithm algorithm, const Reduction& reduction,
                       const std::byte* in, std::byte* out, std::size_t count);

// in: bytes. out: size * bytes; its own block may be `in`.
Outcome all_gather(Comm& comm, Algorithm algorithm, const std::byte* in, std::byte* out,
                   std::size_t bytes);

// data: bytes, read at the root and written elsewhere.
Outcome broadcast(Comm& comm, Algorithm algorithm, int root, std::byte* data, std::size_t bytes);

// in, out: size * bytes, not overlapping.
Outcome all_to_all(Comm& comm, const std::byte* in, std::byte* out, std::size_t bytes);

// in: bytes. out: size * bytes at the root, unused elsewhere.
Outcome gather(Comm& comm, int root, const std::byte* in, std::byte* out, std::size_t bytes);

// As gather, each rank with a size of its own. At the root `blob` becomes, for each rank: its size
// (u64), its bytes.
Outcome gather_bytes(Comm& comm, int root, const std::byte* in, std::size_t bytes,
                     std::vector<std::byte>& blob);

// What scatter needs to know beside the data. At the root, `meta` describes a piece; elsewhere it
// is what is expected.
struct ScatterBuffers {
  const std::byte* in;  // root: size * bytes
  std::byte* out;       // bytes; null: take the piece to the blob
  std::size_t bytes;    // root: of one piece, or 0 if there are none to send
  const std::vector<std::byte>& meta;
};
// Elsewhere `blob` becomes: the root's meta's size (u32), the meta, and the piece if it went
// nowhere else.
Outcome scatter(Comm& comm, int root, const ScatterBuffers& buffers, std::vector<std::byte>& blob);

Outcome send(Comm& comm, int to, const std::byte* data, std::size_t bytes);
Outcome receive(Comm& comm, int from, std::byte* data, std::size_t bytes);
// Whose message with this tag is to be received next: of those that have one, the first after rank
// `last`. A rank whose next frame is something else can't send one first; if all are so, one of
// them, and receiving from it tells what is wrong.
Outcome find_sender(Comm& comm, std::int32_t tag, int last, int* from);
// A message of bytes whose size only the sender knows, but not above `bytes_max`. The expected
// tag's count is ignored.
Outcome receive_bytes(Comm& comm, int from, std::size_t bytes_max, std::vector<std::byte>& blob);

Outcome barrier(Comm& comm, Algorithm algorithm);

}  // namespace standfast
