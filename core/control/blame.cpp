#include "core/control/blame.h"

#include <algorithm>

namespace standfast {

const std::vector<int>& Blame::roots(int waiter, const Statuses& statuses) {
  std::fill(visited_.begin(), visited_.end(), false);
  found_.clear();
  open_.assign(1, waiter);
  visited_[static_cast<std::size_t>(waiter)] = true;
  while (!open_.empty()) {
    const int rank = open_.back();
    open_.pop_back();
    follow(rank, statuses);
  }
  const Status* status = statuses[static_cast<std::size_t>(waiter)];
  if (status != nullptr) add_absent(status->halves[0], statuses);
  std::sort(found_.begin(), found_.end());
  return found_;
}

void Blame::follow(int rank, const Statuses& statuses) {
  const Status* status = statuses[static_cast<std::size_t>(rank)];
  if (status == nullptr || !status->waits()) {
    found_.push_back(rank);
    return;
  }
  for (const Activity& half : status->halves) {
    if (half.waits() && first_visit(half.waiting_for)) open_.push_back(half.waiting_for);
  }
}

// Whoever has not begun a collective holds it up, also where this rank waits for another first.
void Blame::add_absent(const Activity& collective, const Statuses& statuses) {
  const bool is_collective =
      collective.tag.kind != OpKind::kSend && collective.tag.kind != OpKind::kNone;
  if (!collective.waits() || !is_collective) return;
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    const Status* status = statuses[rank];
    const bool absent = status != nullptr && !status->waits() &&
                        static_cast<std::int32_t>(status->started - collective.tag.seq) < 0;
    if (absent && first_visit(static_cast<int>(rank))) found_.push_back(static_cast<int>(rank));
  }
}

bool Blame::first_visit(int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= visited_.size()) return false;
  const bool first = !visited_[static_cast<std::size_t>(rank)];
  visited_[static_cast<std::size_t>(rank)] = true;
  return first;
}

}  // namespace standfast
