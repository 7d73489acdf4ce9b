// A group's core as a capsule for native code of other distributions.
#pragma once

#include <nanobind/nanobind.h>

#include "bind/group_handle.h"

namespace standfast::bind {

// Holds a standfast_native (src/standfast/include/standfast/native.h).
nanobind::capsule native_of(const GroupHandle& handle, int rank, int size);

}  // namespace standfast::bind
