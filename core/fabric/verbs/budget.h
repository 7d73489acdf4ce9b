// How many queue pairs, and how much memory, the wires of a device need: computed before anything
// is created. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {

// Apple's devices have 10 queue pairs, some report 11, and others have none to spare.
struct DeviceOffer {
  std::string device;
  int queue_pairs = 0;
  int regions = 0;
  std::size_t region_bytes_max = 0;
};

struct Need {
  bool has_large = false;  // two queue pairs per rail, or one
  int queue_pairs = 0;
};

// For `rails` of one device. Throws VerbsError, naming need and offer: too_few_queue_pairs,
// too_few_regions.
Need need_of(int rails, std::size_t slab_bytes, const DeviceOffer& offer);

}  // namespace standfast::verbs
