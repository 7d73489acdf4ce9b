// One to four cables to each of two neighbours: chunks travel around, both ways at once.
#pragma once

#include <vector>

#include "core/jaccl/engine.h"
#include "core/jaccl/sizes.h"

namespace standfast::jaccl {

class Ring final : public Engine {
 public:
  Ring(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes);

  Outcome all_reduce(Waiter& waiter, const Reduction& reduction) override;
  Outcome reduce_scatter(Waiter& waiter, const Reduction& reduction) override;
  Outcome all_gather(Waiter& waiter, const std::byte* src, std::byte* dst,
                     std::size_t bytes) override;
  Outcome send(Waiter& waiter, int peer, const std::byte* src, std::size_t bytes) override;
  Outcome receive(Waiter& waiter, int peer, std::byte* dst, std::size_t bytes) override;

 private:
  struct Relay;

  Outcome relay(Waiter& waiter, const Relay& relay);
  void add_flow(Exchange& exchange, const Relay& relay, int direction, int wire);
  int wires() const { return static_cast<int>(lane_count() / 2); }
  Lane& left(int wire) { return lane(static_cast<std::size_t>(wire)); }
  Lane& right(int wire) { return lane(static_cast<std::size_t>(wires() + wire)); }
};

}  // namespace standfast::jaccl
