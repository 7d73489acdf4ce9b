#include "core/collective/choose.h"

namespace standfast {
namespace {

// One phase sends (n-1) times the buffer and adds it n-1 times on every rank; two phases send about
// twice the buffer, but take two steps. Up to here the steps cost more.
constexpr std::size_t kDirectBytes = 16 * 1024;
static_assert(kDirectBytes <= kFrameBytes, "one phase is one frame");

}  // namespace

Algorithm choose(const Shape& shape) {
  const bool is_ring = shape.topology == Topology::kRing && shape.size > 1;
  if (is_ring) return Algorithm::kRing;
  if (shape.kind != OpKind::kAllReduce) return Algorithm::kDirect;
  return shape.bytes <= kDirectBytes ? Algorithm::kDirect : Algorithm::kTwoPhase;
}

std::size_t piece_elements(std::size_t element_bytes) { return kFrameBytes / element_bytes; }

}  // namespace standfast
