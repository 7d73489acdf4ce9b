#include "emulator/objects.h"

#include <algorithm>

namespace standfast::emulator {
namespace {

// A key is a place in this table, and a number that makes it differ from the place's former keys.
constexpr std::uint32_t kPlaceBits = 14;
constexpr std::uint32_t kPlaces = 1u << kPlaceBits;

struct Regions {
  std::mutex mutex;  // guards adding and removing; finding goes without
  std::uint32_t serial = 0;
  std::array<std::atomic<MemoryRegion*>, kPlaces> places{};
};

Regions& regions() {
  static Regions& all = *new Regions;
  return all;
}

}  // namespace

Library& library() {
  static Library& the_one = *new Library;
  return the_one;
}

bool add_region(MemoryRegion& region) {
  Regions& all = regions();
  const std::lock_guard lock(all.mutex);
  for (std::uint32_t place = 0; place < kPlaces; ++place) {
    if (all.places[place].load(std::memory_order_relaxed) != nullptr) continue;
    region.lkey = region.rkey = (++all.serial << kPlaceBits) | place;
    region.handle = place;
    all.places[place].store(&region, std::memory_order_release);
    return true;
  }
  return false;
}

void remove_region(MemoryRegion& region) {
  Regions& all = regions();
  {
    const std::lock_guard lock(all.mutex);
    all.places[region.handle].store(nullptr, std::memory_order_seq_cst);
  }
  // Who found it before did so under one of these locks, and is done with it when we get that.
  const std::lock_guard lock(library().mutex);
  for (QueuePair* pair : library().queue_pairs) {
    const std::lock_guard pair_lock(pair->mutex);
  }
}

const MemoryRegion* find_region(std::uint32_t key) {
  const MemoryRegion* region =
      regions().places[key & (kPlaces - 1)].load(std::memory_order_acquire);
  return region != nullptr && region->lkey == key ? region : nullptr;
}

}  // namespace standfast::emulator
