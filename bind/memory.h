// Memory that other ranks of this host can read where it lies.
#pragma once

#include <nanobind/nanobind.h>

namespace standfast::bind {

void define_memory(nanobind::module_& m);

}  // namespace standfast::bind
