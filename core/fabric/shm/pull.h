// Reading the memory of another process of this host where it lies, shared or not. Called by
// ShmWire; pull_linux.cpp, pull_macos.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace standfast {

// What another process needs to pull from this one, and to know that it is still this one.
struct PullName {
  std::int32_t pid = 0;      // 0: nobody can
  std::uint64_t key = 0;     // random; lies at key_at, in this process only
  std::uint64_t key_at = 0;  // an address
};

// This process's.
PullName pull_name();

// Copies what lies at `address` in that process. False: this process may not, or the memory cannot
// be read, or the process is not there any more; never true for the memory of another process,
// whatever number it has.
bool pull(const PullName& maker, std::uint64_t address, void* to, std::size_t bytes);

// Whether pulling from that process works at all.
inline bool can_pull(const PullName& maker) {
  std::uint64_t key = 0;
  return maker.pid != 0 && pull(maker, maker.key_at, &key, sizeof key);
}

}  // namespace standfast
