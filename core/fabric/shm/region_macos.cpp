// Regions on macOS: none. It has neither nameless shared memory that another process could open nor
// a way to give pages back to it. standfast.empty() gives ordinary memory there, which travels
// through the pair's slots like any other. (Not run by us: no Mac was at hand.)
#include "core/fabric/shm/arena.h"

namespace standfast {

Fd make_region(std::size_t) { return Fd(); }
Fd open_region(const RegionName&) { return Fd(); }
bool commit_pages(int, std::byte*, std::size_t, std::size_t) { return false; }
void drop_pages(int, std::byte*, std::size_t, std::size_t) {}

}  // namespace standfast
