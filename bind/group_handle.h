// How Python holds a native group, and what a thread of Python's does around an operation.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "core/group.h"

namespace standfast::bind {

// Owns its group; a forked child leaves it alone.
class GroupHandle {
 public:
  explicit GroupHandle(GroupConfig config) {
    const nanobind::gil_scoped_release release;
    group_ = std::make_unique<Group>(std::move(config));
  }
  ~GroupHandle() {
    const nanobind::gil_scoped_release release;
    Group::dispose(std::move(group_));
  }
  GroupHandle(const GroupHandle&) = delete;
  GroupHandle& operator=(const GroupHandle&) = delete;
  Group& get() const { return *group_; }

 private:
  std::unique_ptr<Group> group_;
};

// Runs Python's signal handlers in a waiting thread. True if one raised: the exception stays set in
// this thread.
inline bool signal_raised() {
  const nanobind::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace standfast::bind
