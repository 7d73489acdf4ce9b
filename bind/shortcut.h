// The short way from a method of Group to the core, for the usual arguments: see shortcut.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace standfast::bind {

void define_shortcut(nanobind::module_& m);

}  // namespace standfast::bind
