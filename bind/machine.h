// The watch's rules for tests written in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace standfast::bind {

void define_machine(nanobind::module_& m);

}  // namespace standfast::bind
