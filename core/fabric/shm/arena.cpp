#include "core/fabric/shm/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "core/base/bytes.h"

namespace standfast {
namespace {

// The first page holds the key alone.
constexpr std::size_t kPage = 4096;
// Address space is asked for in this measure at the least; a limit on it may allow no more.
constexpr std::size_t kRegionMin = std::size_t{1} << 30;

std::size_t pages_up(std::size_t bytes) {
  return bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage;
}

std::size_t physical_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return kRegionMin;
  return pages_up(static_cast<std::size_t>(pages) * static_cast<std::size_t>(page));
}

void* map_region(int fd, std::size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

std::uint64_t random_key() {
  std::random_device device;
  return (std::uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace

std::unique_ptr<RegionMapping> RegionMapping::of(const RegionName& name) {
  const Fd fd = open_region(name);
  if (!fd.valid()) return nullptr;
  const auto bytes = static_cast<std::size_t>(name.bytes);
  // A file that is shorter than its name says would be a signal at the first look.
  const off_t end = lseek(fd.get(), 0, SEEK_END);
  if (end < 0 || static_cast<std::uint64_t>(end) < name.bytes || bytes < kPage) return nullptr;
  void* memory = map_region(fd.get(), bytes, PROT_READ);
  if (memory == nullptr) return nullptr;
  std::unique_ptr<RegionMapping> mapping(new RegionMapping(memory, bytes));
  return load<std::uint64_t>(as_bytes(memory)) == name.key ? std::move(mapping) : nullptr;
}

RegionMapping::~RegionMapping() { munmap(memory_, bytes_); }

const std::byte* RegionMapping::at(std::uint64_t offset, std::size_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return nullptr;
  return as_bytes(memory_) + offset;
}

std::optional<std::size_t> Stretches::take(std::size_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [offset, length] = *it;
    free_.erase(it);
    if (length > bytes) free_[offset + bytes] = length - bytes;
    return offset;
  }
  return std::nullopt;
}

void Stretches::give_back(std::size_t offset, std::size_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

std::atomic<Arena*> Arena::latest_{nullptr};

Arena::Arena(Fd fd, std::byte* base, const RegionName& name)
    : fd_(std::move(fd)), base_(base), name_(name), stretches_(kPage, name.bytes) {}

std::unique_ptr<Arena> Arena::make() {
  for (std::size_t bytes = physical_bytes(); bytes >= kRegionMin; bytes = pages_up(bytes / 2)) {
    Fd fd = make_region(bytes);
    if (!fd.valid()) return nullptr;
    void* memory = map_region(fd.get(), bytes, PROT_READ | PROT_WRITE);
    if (memory == nullptr) continue;
    std::byte* base = as_bytes(memory);
    if (!commit_pages(fd.get(), base, 0, kPage)) return nullptr;
    const RegionName name = {static_cast<std::int32_t>(getpid()), fd.get(), random_key(), bytes};
    store(base, name.key);
    return std::unique_ptr<Arena>(new Arena(std::move(fd), base, name));
  }
  return nullptr;
}

Arena* Arena::here() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Arena* arena = latest_.load(std::memory_order_relaxed);
  if (arena == nullptr || arena->name_.pid != getpid()) {
    arena = make().release();
    latest_.store(arena, std::memory_order_release);
  }
  return arena;
}

const Arena* Arena::made() {
  const Arena* arena = latest_.load(std::memory_order_acquire);
  return arena != nullptr && arena->name_.pid == getpid() ? arena : nullptr;
}

std::byte* Arena::take(std::size_t bytes) {
  if (bytes > name_.bytes) return nullptr;
  const std::size_t length = pages_up(bytes);
  std::optional<std::size_t> offset;
  {
    const std::lock_guard lock(mutex_);
    offset = stretches_.take(length);
  }
  if (!offset) return nullptr;
  std::byte* memory = base_ + *offset;
  if (commit_pages(fd_.get(), memory, *offset, length)) {
    taken_.fetch_add(length, std::memory_order_relaxed);
    return memory;
  }
  drop_pages(fd_.get(), memory, *offset, length);
  const std::lock_guard lock(mutex_);
  stretches_.give_back(*offset, length);
  return nullptr;
}

void Arena::give_back(std::byte* memory, std::size_t bytes) {
  if (getpid() != name_.pid) return;
  const std::size_t length = pages_up(bytes);
  const auto offset = static_cast<std::size_t>(memory - base_);
  drop_pages(fd_.get(), memory, offset, length);
  taken_.fetch_sub(length, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  stretches_.give_back(offset, length);
}

}  // namespace standfast
