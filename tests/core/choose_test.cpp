// The choice of algorithms: pure, and by the measured table.
#include "core/collective/choose.h"

#include <doctest/doctest.h>

#include <vector>

using namespace standfast;

namespace {

constexpr FabricKind kFabrics[] = {FabricKind::kShm, FabricKind::kTcp, FabricKind::kVerbs};

Shape sum_of(std::size_t bytes, int size, Topology topology, FabricKind fabric) {
  return {OpKind::kAllReduce, bytes, size, topology, fabric};
}

}  // namespace

TEST_CASE("a mesh sums in one phase up to the table's size, and in two beyond it") {
  for (const FabricKind fabric : kFabrics) {
    for (const int size : {2, 3, 4, 8, 64, 1000}) {
      const std::size_t last = switch_points(fabric, size).direct_bytes;
      CHECK(choose(sum_of(last, size, Topology::kMesh, fabric)) == Algorithm::kDirect);
      CHECK(choose(sum_of(last + 1, size, Topology::kMesh, fabric)) == Algorithm::kTwoPhase);
    }
  }
}

TEST_CASE("a ring is chosen where it is asked for, and for more than one rank") {
  for (const FabricKind fabric : kFabrics) {
    CHECK(choose(sum_of(8, 2, Topology::kRing, fabric)) == Algorithm::kRing);
    CHECK(choose(sum_of(8, 1, Topology::kRing, fabric)) != Algorithm::kRing);
  }
}

TEST_CASE("left to us, a ring begins at the table's size, and never between two ranks") {
  for (const FabricKind fabric : kFabrics) {
    for (const int size : {2, 3, 4, 8, 64}) {
      const SwitchPoints& points = switch_points(fabric, size);
      const std::size_t from[] = {points.ring_all_reduce, points.ring_all_gather,
                                  points.ring_reduce_scatter};
      const OpKind kinds[] = {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter};
      for (int k = 0; k < 3; ++k) {
        for (const std::size_t bytes : {std::size_t{0}, from[k] - 1, from[k], kNeverBytes - 1}) {
          const bool around =
              choose({kinds[k], bytes, size, Topology::kAuto, fabric}) == Algorithm::kRing;
          CHECK(around == (size > 2 && bytes >= from[k]));
        }
      }
      CHECK(choose({OpKind::kBroadcast, 1 << 30, size, Topology::kAuto, fabric}) ==
            Algorithm::kDirect);
    }
  }
}

TEST_CASE("one algorithm alone can be asked for, as far as it reaches") {
  for (const FabricKind fabric : kFabrics) {
    CHECK(choose(sum_of(8, 2, Topology::kTwoPhase, fabric)) == Algorithm::kTwoPhase);
    CHECK(choose(sum_of(kEagerBytes, 4, Topology::kDirect, fabric)) == Algorithm::kDirect);
    CHECK(choose(sum_of(kEagerBytes + 1, 4, Topology::kDirect, fabric)) == Algorithm::kTwoPhase);
  }
}

TEST_CASE("a barrier of few ranks over shared memory has one round, others have log2(n)") {
  const auto barrier = [](int size, FabricKind fabric, Topology topology = Topology::kAuto) {
    return choose({OpKind::kBarrier, 0, size, topology, fabric});
  };
  for (const int size : {2, 3, 4, 8, 16}) {
    CHECK(barrier(size, FabricKind::kShm) == Algorithm::kDirect);
    CHECK(barrier(size, FabricKind::kShm, Topology::kMesh) == Algorithm::kDirect);
    CHECK(barrier(size, FabricKind::kShm, Topology::kRing) == Algorithm::kRing);
    CHECK(barrier(size, FabricKind::kShm, Topology::kTwoPhase) == Algorithm::kTwoPhase);
    CHECK(barrier(size, FabricKind::kTcp) == Algorithm::kTwoPhase);
    CHECK(barrier(size, FabricKind::kTcp, Topology::kDirect) == Algorithm::kDirect);
    CHECK(barrier(size, FabricKind::kVerbs) == Algorithm::kTwoPhase);
  }
  CHECK(barrier(17, FabricKind::kShm) == Algorithm::kTwoPhase);
}

TEST_CASE("the row for a number of ranks is the first that reaches it, or the last") {
  for (const FabricKind fabric : kFabrics) {
    int before = 0;
    for (int ranks = 1; ranks <= 4096; ranks *= 2) {
      const SwitchPoints& row = switch_points(fabric, ranks);
      CHECK(row.fabric == fabric);
      CHECK(row.ranks >= before);
      before = row.ranks;
      const bool is_last = &row == &switch_points(fabric, 1 << 20);
      CHECK((row.ranks >= ranks || is_last));
    }
  }
}
