// A queue pair to each peer: everybody sends to everybody.
#pragma once

#include <vector>

#include "core/jaccl/engine.h"
#include "core/jaccl/sizes.h"
#include "core/jaccl/sum.h"

namespace standfast::jaccl {

class Mesh final : public Engine {
 public:
  Mesh(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes);

  Outcome all_reduce(Waiter& waiter, const Reduction& reduction) override;
  Outcome reduce_scatter(Waiter& waiter, const Reduction& reduction) override;
  Outcome all_gather(Waiter& waiter, const std::byte* src, std::byte* dst,
                     std::size_t bytes) override;
  Outcome send(Waiter& waiter, int peer, const std::byte* src, std::size_t bytes) override;
  Outcome receive(Waiter& waiter, int peer, std::byte* dst, std::size_t bytes) override;

 private:
  Sum::Parts parts_of(const Reduction& reduction, std::size_t bytes, const Cut& cut) const;
  template <class Fill, class Take>
  void with_all(Exchange& exchange, std::size_t count, const Fill& fill, const Take& take);
  Outcome reduce_whole(Waiter& waiter, const Reduction& reduction);
  Outcome reduce_chunks(Waiter& waiter, const Reduction& reduction, std::size_t chunk);
  Lane& lane_to(int peer) { return lane(static_cast<std::size_t>(peer - (peer > rank()))); }
  int rank() const { return layout().rank; }
  int size() const { return layout().size; }
};

}  // namespace standfast::jaccl
