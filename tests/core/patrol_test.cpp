// What is done every so often is done again and again, and stopping does not wait for the next.
#include "core/wait/patrol.h"

#include <doctest/doctest.h>

#include <atomic>

#include "tests/core/support.h"

namespace standfast {

TEST_CASE("patrol: rounds go on until it is stopped") {
  std::atomic<int> rounds{0};
  Patrol patrol;
  patrol.start(kMillisecond, [&] { ++rounds; });
  CHECK(test::eventually([&] { return rounds >= 3; }));
  patrol.stop();
  const int done = rounds;
  CHECK_FALSE(test::eventually([&] { return rounds != done; }, 20 * kMillisecond));
}

TEST_CASE("patrol: stopping does not wait for a round that is far away") {
  std::atomic<int> rounds{0};
  const Nanos begun = now_ns();
  {
    Patrol patrol;
    patrol.start(3600 * kSecond, [&] { ++rounds; });
  }
  CHECK(now_ns() - begun < test::kPatience);
  CHECK(rounds == 0);
}

}  // namespace standfast
