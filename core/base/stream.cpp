#include "core/base/stream.h"

#include <algorithm>
#include <cstdint>

#include "core/base/bytes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace standfast {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kLine = 64;
// Several pages are copied at once: as many streams of loads for the prefetcher, which stops at the
// end of a page.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 4;

void stream_line(std::byte* to, const std::byte* from) {
  constexpr int kParts = kLine / sizeof(__m128i);
  __m128i parts[kParts];
  for (int i = 0; i < kParts; ++i) {
    parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
  }
  for (int i = 0; i < kParts; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
}

}  // namespace

void stream_bytes(void* to_memory, const void* from_memory, std::size_t bytes) {
  std::byte* to = as_bytes(to_memory);
  const std::byte* from = as_bytes(from_memory);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(bytes, past == 0 ? 0 : kLine - past);
  copy_bytes(to, from, head);
  std::size_t done = head;
  for (; bytes - done >= kPages * kPage; done += kPages * kPage) {
    for (std::size_t line = 0; line < kPage; line += kLine) {
      for (std::size_t page = 0; page < kPages; ++page) {
        const std::size_t at = done + page * kPage + line;
        stream_line(to + at, from + at);
      }
    }
  }
  for (; bytes - done >= kLine; done += kLine) stream_line(to + done, from + done);
  copy_bytes(to + done, from + done, bytes - done);
  // Streamed stores are not ordered among others: whoever sees what this thread does next must see
  // them too.
  _mm_sfence();
}
#else
void stream_bytes(void* to, const void* from, std::size_t bytes) { copy_bytes(to, from, bytes); }
#endif

}  // namespace standfast
