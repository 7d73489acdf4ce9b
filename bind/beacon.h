#pragma once

#include <nanobind/nanobind.h>

namespace standfast::bind {

// What rendezvous needs for the memory of the beacons.
void define_beacon(nanobind::module_& m);

}  // namespace standfast::bind
