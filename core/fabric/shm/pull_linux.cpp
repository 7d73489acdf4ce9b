// Pulling on Linux: process_vm_readv, allowed where this process could trace the other.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <random>

#include "core/fabric/shm/pull.h"

namespace standfast {
namespace {

constexpr std::size_t kKeyPage = 4096;

// A page of its own, which a forked child sees empty: what it has inherited is its parent's, even
// if it should get its parent's number. Null: the kernel has no such pages.
std::uint64_t* make_key() {
  void* page = mmap(nullptr, kKeyPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, kKeyPage, MADV_WIPEONFORK) != 0) {
    munmap(page, kKeyPage);
    return nullptr;
  }
  return static_cast<std::uint64_t*>(page);
}

std::uint64_t random_key() {
  std::random_device device;
  return (std::uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace

// Never freed: peers may look at the key as long as this process lives.
PullName pull_name() {
  static std::uint64_t* const key = make_key();
  if (key == nullptr) return {};
  if (*key == 0) *key = random_key();
  return {static_cast<std::int32_t>(getpid()), *key, reinterpret_cast<std::uintptr_t>(key)};
}

bool pull(const PullName& maker, std::uint64_t address, void* to, std::size_t bytes) {
  // The call holds on to one address space from its begin to its end. The key, read in the same
  // call, tells that it was the maker's: not that of a program that the maker has become, nor of
  // another process that got its number.
  std::uint64_t key = 0;
  const iovec here[2] = {{to, bytes}, {&key, sizeof key}};
  const iovec there[2] = {{reinterpret_cast<void*>(address), bytes},
                          {reinterpret_cast<void*>(maker.key_at), sizeof key}};
  const ssize_t moved = process_vm_readv(maker.pid, here, 2, there, 2, 0);
  return moved == static_cast<ssize_t>(bytes + sizeof key) && key == maker.key;
}

}  // namespace standfast
