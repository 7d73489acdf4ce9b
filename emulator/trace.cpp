#include "emulator/trace.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <vector>

#include "emulator/clock.h"

namespace standfast::emulator {

std::uint64_t digest(const std::byte* data, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(data[i])) * 0x100000001b3;
  }
  return hash;
}

void write_trace(const QueuePair& pair, const char* event, std::uint64_t wr_id, std::uint32_t bytes,
                 const std::function<bool(std::byte*)>& read) {
  std::vector<std::byte> data(std::size_t{bytes} + 1);
  const bool was_read = read(data.data());
  const Port& port = pair.device->shared();
  char line[512];
  std::snprintf(line, sizeof line,
                "{\"ns\":%" PRId64
                ",\"event\":\"%s\",\"host\":\"%s\",\"device\":\"%s\",\"pid\":%d,\"qp\":%u"
                ",\"wr_id\":%" PRIu64 ",\"bytes\":%u,\"digest\":\"%016" PRIx64 "\"}",
                now_ns(), event, port.host, port.device, static_cast<int>(getpid()), pair.qp_num,
                wr_id, bytes, was_read ? digest(data.data(), bytes) : 0);
  pair.store().append(".trace", line);
}

}  // namespace standfast::emulator
