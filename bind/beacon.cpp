#include "bind/beacon.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "core/control/beacon.h"
#include "core/fabric/shm/segment.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {

void define_beacon(nb::module_& m) {
  m.def(
      "beacon_open",
      [](int maker, const std::string& key, int size) {
        std::string name = segment_name(maker, key);
        const int fd = open_beacon_memory(name, size).release();
        if (fd < 0) name.clear();
        return std::pair(std::move(name), fd);
      },
      nb::kw_only(), "maker"_a, "key"_a, "size"_a,
      "Open the memory for the beacons of a group of `size`, or make it; return (name, descriptor)."
      "\n\nThe name is made of the pid `maker` and 12 hex digits. (\"\", -1) where there are no"
      " beacons.");
}

}  // namespace standfast::bind
