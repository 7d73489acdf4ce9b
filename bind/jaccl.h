// JACCL's queue pairs, as Python makes them before there is a group.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/jaccl/engine.h"

namespace standfast::bind {

// An engine that Python can hold before a group takes it.
struct EngineBox {
  std::unique_ptr<jaccl::Engine> engine;
};

void define_jaccl(nanobind::module_& m);

}  // namespace standfast::bind
