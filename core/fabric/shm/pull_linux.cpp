// Pulling on Linux: process_vm_readv, allowed where this process could trace the other.
#include <sys/uio.h>

#include "core/fabric/shm/arena.h"

namespace standfast {

bool pull(const RegionName& maker, std::uint64_t address, void* to, std::size_t bytes) {
  // The call holds on to one address space from its begin to its end. The key, read in the same
  // call, tells that it was the maker's: not that of a program that the maker has become, nor of
  // another process that got its number.
  std::uint64_t key = 0;
  const iovec here[2] = {{to, bytes}, {&key, sizeof key}};
  const iovec there[2] = {{reinterpret_cast<void*>(address), bytes},
                          {reinterpret_cast<void*>(maker.base), sizeof key}};
  const ssize_t moved = process_vm_readv(maker.pid, here, 2, there, 2, 0);
  return moved == static_cast<ssize_t>(bytes + sizeof key) && key == maker.key;
}

}  // namespace standfast
