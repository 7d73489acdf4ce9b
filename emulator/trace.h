// What has happened on the wire, a line of JSON each, for tests that assert it. Off by default.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "emulator/objects.h"

namespace standfast::emulator {

inline bool is_traced(const Store& store) {
  return store.header().trace.load(std::memory_order_relaxed) != 0;
}

// Writes {"event", "host", "device", "qp", "pid", "wr_id", "bytes", "digest"}; the digest is over
// the data, which `read` copies.
void write_trace(const QueuePair& pair, const char* event, std::uint64_t wr_id, std::uint32_t bytes,
                 const std::function<bool(std::byte*)>& read);

template <typename Read>
void trace_message(const QueuePair& pair, const char* event, std::uint64_t wr_id,
                   std::uint32_t bytes, Read read) {
  if (is_traced(pair.store())) write_trace(pair, event, wr_id, bytes, read);
}

// 64-bit FNV-1a, as 16 hex digits where it is written.
std::uint64_t digest(const std::byte* data, std::size_t bytes);

}  // namespace standfast::emulator
