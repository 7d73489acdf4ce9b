// What the machine allows, for `standfast bench --limits`.
#pragma once

#include <nanobind/nanobind.h>

namespace standfast::bind {

void define_limits(nanobind::module_& m);

}  // namespace standfast::bind
