// RDMA, as rendezvous uses it before there is a group: devices, and the rails to each peer.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/fabric/verbs/link.h"

namespace standfast::bind {

// The rails to a peer that Python can hold before a group takes them.
struct RailsBox {
  std::unique_ptr<verbs::Link> link;
};

void define_verbs(nanobind::module_& m);

}  // namespace standfast::bind
