#include "core/jaccl/engine.h"

#include <utility>

#include "core/base/error.h"
#include "core/jaccl/mesh.h"
#include "core/jaccl/ring.h"

namespace standfast::jaccl {

Engine::Engine(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes)
    : layout_(layout), lanes_(std::move(lanes)) {}

std::byte* Engine::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

Outcome Engine::run(Exchange& exchange, Waiter& waiter, Half half) {
  const Outcome outcome = waiter.poll_until([&](Nanos quiet) { return exchange.step(quiet); });
  if (outcome != Outcome::kOk) record(half).trouble = exchange.trouble();
  return outcome;
}

Outcome Engine::barrier(Waiter& waiter) {
  std::byte flag{};
  return all_reduce(waiter, {&flag, &flag, 1, DType::kUInt8, ReduceOp::kSum});
}

std::string Engine::link(int peer) const {
  std::string text;
  for (const auto& lane : lanes_) {
    // In a ring of two, both directions go over the same cables.
    const bool is_new = text.find(lane->text()) == std::string::npos;
    if (lane->peer() == peer && is_new) text += (text.empty() ? "" : ", ") + lane->text();
  }
  return text;
}

std::unique_ptr<Engine> make_engine(const Layout& layout,
                                    std::vector<std::unique_ptr<Lane>> lanes) {
  if (layout.form == Form::kMesh) return std::make_unique<Mesh>(layout, std::move(lanes));
  return std::make_unique<Ring>(layout, std::move(lanes));
}

}  // namespace standfast::jaccl
