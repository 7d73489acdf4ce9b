// shared_memory: what standfast.empty() makes its arrays of.
#include "bind/memory.h"

#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>

#include "core/fabric/shm/arena.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {
namespace {

struct Lease {
  Arena* arena;
  std::byte* memory;
  std::size_t bytes;
};

void give_back(void* lease) noexcept {
  const std::unique_ptr<Lease> ended(static_cast<Lease*>(lease));
  ended->arena->give_back(ended->memory, ended->bytes);
}

nb::object shared_memory(std::size_t bytes) {
  Arena* arena = Arena::here();
  if (arena == nullptr) return nb::none();
  std::byte* memory = nullptr;
  {
    const nb::gil_scoped_release release;  // the pages are cleared meanwhile
    memory = arena->take(bytes);
  }
  if (memory == nullptr) throw std::bad_alloc();
  const nb::capsule owner(new Lease{arena, memory, bytes}, give_back);
  const std::size_t shape[1] = {bytes};
  return nb::cast(nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>(memory, 1, shape, owner));
}

}  // namespace

void define_memory(nb::module_& m) {
  m.def("shared_memory", &shared_memory, "nbytes"_a,
        nb::sig("def shared_memory(nbytes: int) -> memoryview | None"),
        "Return zeroed memory that other ranks of this host can map; None where there is none.\n\n"
        "It goes back when the last view of it goes. MemoryError if there is not enough.");
  m.def(
      "shared_memory_taken",
      [] {
        const Arena* arena = Arena::made();
        return arena != nullptr ? arena->bytes_taken() : 0;
      },
      "Return how many bytes of such memory are in use, in whole pages.");
}

}  // namespace standfast::bind
