#include "core/collective/choose.h"

#include "core/base/error.h"

namespace standfast {
namespace {

// Part of the package, not measured when a group forms: ranks that measured for themselves could
// come to different conclusions.
constexpr SwitchPoints kTable[] = {
#include "core/collective/switch_points.inc"
};

// In one phase, a rank flushes its own frame before it adds up and releases the others'.
constexpr bool is_eager() {
  for (const SwitchPoints& row : kTable) {
    if (row.direct_bytes > kEagerBytes) return false;
  }
  return true;
}
static_assert(is_eager(), "one phase is one frame, which nobody has to take");

std::size_t ring_from(const SwitchPoints& points, OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce: return points.ring_all_reduce;
    case OpKind::kAllGather: return points.ring_all_gather;
    case OpKind::kReduceScatter: return points.ring_reduce_scatter;
    default: return kNeverBytes;
  }
}

bool is_around(const Shape& shape, const SwitchPoints& points) {
  if (shape.topology == Topology::kRing) return shape.size > 1;
  // Two ranks are neighbours either way.
  const bool is_open = shape.topology == Topology::kAuto && shape.size > 2;
  return is_open && shape.bytes >= ring_from(points, shape.kind);
}

std::size_t direct_bytes(const Shape& shape, const SwitchPoints& points) {
  if (shape.topology == Topology::kDirect) return kEagerBytes;
  return shape.topology == Topology::kTwoPhase ? 0 : points.direct_bytes;
}

// A barrier in one round takes n - 1 frames of each rank, in log2(n) rounds as many as rounds. Over
// shared memory a frame is a cache line, cheaper than another round: that is a trip between cores
// or, with more ranks than cores, another turn of every rank on its core.
constexpr int kOneRoundRanks = 16;

bool is_one_round(const Shape& shape) {
  if (shape.topology == Topology::kTwoPhase) return false;
  const bool is_cheap = shape.fabric == FabricKind::kShm && shape.size <= kOneRoundRanks;
  return is_cheap || shape.topology == Topology::kDirect;
}

}  // namespace

const SwitchPoints& switch_points(FabricKind fabric, int ranks) {
  const SwitchPoints* found = nullptr;
  for (const SwitchPoints& row : kTable) {
    if (row.fabric != fabric) continue;
    found = &row;
    if (ranks <= row.ranks) break;
  }
  SF_CHECK(found != nullptr);
  return *found;
}

Algorithm choose(const Shape& shape) {
  const SwitchPoints& points = switch_points(shape.fabric, shape.size);
  if (is_around(shape, points)) return Algorithm::kRing;
  if (shape.kind == OpKind::kBarrier) {
    return is_one_round(shape) ? Algorithm::kDirect : Algorithm::kTwoPhase;
  }
  if (shape.kind != OpKind::kAllReduce) return Algorithm::kDirect;
  return shape.bytes <= direct_bytes(shape, points) ? Algorithm::kDirect : Algorithm::kTwoPhase;
}

std::size_t piece_elements(std::size_t element_bytes) { return kFrameBytes / element_bytes; }

}  // namespace standfast
