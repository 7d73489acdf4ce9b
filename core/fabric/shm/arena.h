// The memory behind standfast.empty(): one region of this process that the other ranks of its host
// can map, so that they read arrays in it where they lie. bind/ gives it out; ShmWire lends it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/fd.h"

namespace standfast {

// What another process needs to find a region, and to know that it is the right one.
struct RegionName {
  std::int32_t pid = 0;   // its maker
  std::int32_t fd = -1;   // in its maker
  std::uint64_t key = 0;  // random; the region begins with it
  std::uint64_t bytes = 0;
};

// region_linux.cpp, region_macos.cpp.
//
// A region of this size that no name leads to and that takes pages as they are committed. Invalid
// where that is impossible.
Fd make_region(std::size_t bytes);
// Another process's region. Invalid if this process may not see it.
Fd open_region(const RegionName& name);
// Takes pages now, so that their lack is an error here and no signal later. False: there are none.
bool commit_pages(int fd, std::byte* at, std::size_t offset, std::size_t bytes);
// Gives pages back, however many processes have them mapped.
void drop_pages(int fd, std::byte* at, std::size_t offset, std::size_t bytes);

// A mapping of a region, whole; pages that nobody touches cost nothing.
class RegionMapping {
 public:
  // Null if the region cannot be mapped, or is not the one that was named.
  static std::unique_ptr<RegionMapping> of(const RegionName& name);
  RegionMapping(const RegionMapping&) = delete;
  RegionMapping& operator=(const RegionMapping&) = delete;
  ~RegionMapping();
  // Null: not within the region.
  const std::byte* at(std::uint64_t offset, std::size_t bytes) const;

 private:
  RegionMapping(void* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  void* memory_;
  std::size_t bytes_;
};

// Free stretches of a region. Pure: knows offsets, no memory.
class Stretches {
 public:
  Stretches(std::size_t begin, std::size_t end) { free_[begin] = end - begin; }
  // The lowest free place; nothing if there is none.
  std::optional<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset, std::size_t bytes);

 private:
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes; no two of them touch
};

class Arena {
 public:
  // This process's own, made at the first call; null where there is none to be had. A forked child
  // makes its own: what it inherited stays its parent's.
  static Arena* here();
  // The same, but null if nobody has asked for it yet.
  static const Arena* made();

  // Memory of at least one byte, zero, page-aligned; null if there is no room.
  std::byte* take(std::size_t bytes);
  // In a forked child this does nothing.
  void give_back(std::byte* memory, std::size_t bytes);

  // Where in the region this lies; nothing if it lies elsewhere.
  std::optional<std::uint64_t> offset_of(const void* memory, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(base_);
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    if (at < begin || at - begin >= name_.bytes) return std::nullopt;
    if (bytes > name_.bytes - (at - begin)) return std::nullopt;
    return at - begin;
  }
  const RegionName& name() const { return name_; }
  std::size_t bytes_taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  Arena(Fd fd, std::byte* base, const RegionName& name);
  static std::unique_ptr<Arena> make();

  // This process's or an ancestor's. Never freed: arrays may live longer than anything else, and a
  // child must not free its parent's.
  static std::atomic<Arena*> latest_;
  const Fd fd_;
  std::byte* const base_;
  const RegionName name_;
  std::mutex mutex_;  // guards stretches_
  Stretches stretches_;
  // For tests and messages. Relaxed: a figure.
  std::atomic<std::size_t> taken_{0};
};

}  // namespace standfast
