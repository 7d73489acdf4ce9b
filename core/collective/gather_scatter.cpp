// gather and scatter: between the root and each other rank, directly.
#include <algorithm>

#include "core/collective/algorithms.h"

namespace standfast {
namespace {

template <class T>
void append(std::vector<std::byte>& blob, T value) {
  std::byte bytes[sizeof value];
  store(bytes, value);
  blob.insert(blob.end(), bytes, bytes + sizeof value);
}

// A frame whose length the other side does not know: its length goes ahead.
Outcome send_sized(Comm& comm, int to, const std::byte* data, const std::uint64_t& bytes) {
  SF_TRY(comm.send(to, &bytes, sizeof bytes));
  return bytes == 0 ? Outcome::kOk : send(comm, to, data, bytes);
}

Outcome receive_size(Comm& comm, int from, std::uint64_t* bytes) {
  return comm.receive(from, bytes, sizeof *bytes);
}

}  // namespace

Outcome gather(Comm& comm, int root, const std::byte* in, std::byte* out, std::size_t bytes) {
  if (comm.rank() != root) return send(comm, root, in, bytes);
  for (int distance = 1; distance < comm.size(); ++distance) {
    const int from = comm.rank_at(distance);
    SF_TRY(receive(comm, from, out + static_cast<std::size_t>(from) * bytes, bytes));
  }
  std::byte* own = out + static_cast<std::size_t>(root) * bytes;
  if (own != in) copy_bytes(own, in, bytes);
  return Outcome::kOk;
}

Outcome gather_bytes(Comm& comm, int root, const std::byte* in, std::size_t bytes,
                     std::vector<std::byte>& blob) {
  const std::uint64_t own_bytes = bytes;
  if (comm.rank() != root) {
    SF_TRY(send_sized(comm, root, in, own_bytes));
    return comm.flush();
  }
  for (int rank = 0; rank < comm.size(); ++rank) {
    std::uint64_t length = own_bytes;
    if (rank != root) SF_TRY(receive_size(comm, rank, &length));
    append(blob, length);
    const std::size_t at = blob.size();
    blob.resize(at + length);
    if (rank == root) {
      copy_bytes(blob.data() + at, in, bytes);
    } else if (length > 0) {
      SF_TRY(receive(comm, rank, blob.data() + at, length));
    }
  }
  return Outcome::kOk;
}

Outcome scatter(Comm& comm, int root, const ScatterBuffers& buffers, std::vector<std::byte>& blob) {
  const std::uint64_t meta_bytes = buffers.meta.size();
  const std::uint64_t piece_bytes = buffers.bytes;
  if (comm.rank() == root) {
    for (int distance = 1; distance < comm.size(); ++distance) {
      const int to = comm.rank_at(distance);
      SF_TRY(send_sized(comm, to, buffers.meta.data(), meta_bytes));
      SF_TRY(send_sized(comm, to, buffers.in + static_cast<std::size_t>(to) * buffers.bytes,
                        piece_bytes));
    }
    const std::byte* own = buffers.in + static_cast<std::size_t>(root) * buffers.bytes;
    if (buffers.out != nullptr && buffers.out != own) {
      copy_bytes(buffers.out, own, buffers.bytes);
    }
    return comm.flush();
  }
  std::uint64_t length = 0;
  SF_TRY(receive_size(comm, root, &length));
  append(blob, static_cast<std::uint32_t>(length));
  blob.resize(blob.size() + length);
  if (length > 0) SF_TRY(receive(comm, root, blob.data() + 4, length));
  const bool is_expected = buffers.out != nullptr && length == buffers.meta.size() &&
                           std::equal(buffers.meta.begin(), buffers.meta.end(), blob.begin() + 4);
  SF_TRY(receive_size(comm, root, &length));
  if (length == 0) return Outcome::kOk;
  if (is_expected) return receive(comm, root, buffers.out, length);
  const std::size_t at = blob.size();
  blob.resize(at + length);
  return receive(comm, root, blob.data() + at, length);
}

}  // namespace standfast
