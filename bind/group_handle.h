// How Python holds a native group, and what a thread of Python's does around an operation.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "core/group.h"

namespace standfast::bind {

// Owns its group, with those to whom it gave a share; a forked child leaves it alone.
class GroupHandle {
 public:
  explicit GroupHandle(GroupConfig config) {
    const nanobind::gil_scoped_release release;
    group_ = std::shared_ptr<Group>(new Group(std::move(config)), [](Group* group) {
      Group::dispose(std::unique_ptr<Group>(group));
    });
  }
  ~GroupHandle() {
    const nanobind::gil_scoped_release release;
    group_.reset();
  }
  GroupHandle(const GroupHandle&) = delete;
  GroupHandle& operator=(const GroupHandle&) = delete;
  Group& get() const { return *group_; }
  // For code that Python knows nothing of, and which may outlive this.
  std::shared_ptr<Group> share() const { return group_; }

 private:
  std::shared_ptr<Group> group_;
};

// Runs Python's signal handlers in a waiting thread. True if one raised: the exception stays set in
// this thread.
inline bool signal_raised() {
  const nanobind::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace standfast::bind
