// What the tests of groups in trouble share: operations repeated until one fails, and what all
// ranks must have heard then.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/core/team.h"

namespace standfast::test {

inline constexpr int kSize = 3;
inline constexpr std::size_t kCount = 100;
inline constexpr std::size_t kMuch = 1 << 19;  // more than all buffers between two ranks hold
// The promise is one second. The machine is small, loaded, and runs sanitizers.
inline constexpr Nanos kPromised = 2 * kSecond;

inline constexpr RequestKind kKinds[] = {
    RequestKind::kAllReduce, RequestKind::kAllGather,   RequestKind::kReduceScatter,
    RequestKind::kBroadcast, RequestKind::kAllToAll,    RequestKind::kGather,
    RequestKind::kScatter,   RequestKind::kGatherBytes, RequestKind::kBarrier};
inline constexpr FabricKind kFabrics[] = {FabricKind::kShm, FabricKind::kTcp};

struct Heard {
  bool is_failure = false;
  Failure failure;
  Nanos at = 0;
};

// Repeats an operation until it fails: the wait in which the fault finds the rank is any of them.
template <class Operate>
Heard until_failure(Operate operate) {
  Heard heard;
  (void)eventually([&] {
    Result result = operate();
    if (!result.failure) return false;
    heard = {true, std::move(*result.failure), now_ns()};
    return true;
  });
  return heard;
}

inline Heard barriers_until_failure(Group& group, Nanos timeout = kNever) {
  return until_failure([&] {
    Request barrier = request(RequestKind::kBarrier, nullptr, nullptr, 0);
    barrier.timeout = timeout;
    return group.run(barrier, nullptr);
  });
}

inline void check_heard(const std::vector<Heard>& heard, int but, std::vector<VerdictKind> kinds,
                        int rank, Nanos since) {
  const Heard* first = nullptr;
  for (int each = 0; each < static_cast<int>(heard.size()); ++each) {
    if (each == but) continue;
    CAPTURE(each);
    const Heard& one = heard[static_cast<std::size_t>(each)];
    REQUIRE(one.is_failure);
    INFO(text_of(one.failure));
    CHECK(std::count(kinds.begin(), kinds.end(), one.failure.verdict.kind) == 1);
    if (rank >= 0) CHECK(one.failure.verdict.rank == rank);
    CHECK(one.failure.verdict.detected_ns > 0);
    CHECK(one.at - since < kPromised);
    if (first == nullptr) first = &one;
    CHECK(one.failure.verdict.kind == first->failure.verdict.kind);
    CHECK(one.failure.verdict.rank == first->failure.verdict.rank);
  }
}

}  // namespace standfast::test
