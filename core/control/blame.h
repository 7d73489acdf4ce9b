// Who holds the others up: from what each rank says that it does to the ranks at the root of the
// waiting. Pure.
#pragma once

#include <vector>

#include "core/control/status.h"

namespace standfast {

// By rank; null for ranks that left, and for those whose status is not known.
using Statuses = std::vector<const Status*>;

class Blame {
 public:
  explicit Blame(int size) : visited_(static_cast<std::size_t>(size)) {}

  // Follows who waits for whom from `waiter` on. The ranks found do not wait themselves, or have
  // not begun the collective that `waiter` is in; sorted. None: they wait in a circle.
  const std::vector<int>& roots(int waiter, const Statuses& statuses);

 private:
  void follow(int rank, const Statuses& statuses);
  void add_absent(const Activity& collective, const Statuses& statuses);
  bool first_visit(int rank);

  std::vector<bool> visited_;
  std::vector<int> open_;
  std::vector<int> found_;
};

}  // namespace standfast
