// Links to ranks that speak another protocol: the watch says nothing on them, and sees their ends.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "tests/core/watches.h"

namespace standfast {
namespace {

using test::BareRank;
using test::eventually;
using test::watch_config;
using test::WatchedRank;

struct Rig {
  WatchedRank zero;
  std::unique_ptr<BareRank> stock;
  std::unique_ptr<BareRank> ours;

  // Rank 0 with rank 1, which is silent, and rank 2, which is one of ours.
  Rig() {
    WatchConfig config = watch_config(0, 3);
    config.silent = {1};
    auto [a, b] = test::socket_pair();
    auto [c, d] = test::socket_pair();
    config.links.emplace_back(1, std::move(a));
    config.links.emplace_back(2, std::move(c));
    stock = std::make_unique<BareRank>(std::move(b));
    ours = std::make_unique<BareRank>(std::move(d));
    zero.start(std::move(config));
  }
  bool hears_nothing() const {
    std::byte buffer[64];
    return receive_some(stock->link().get(), buffer, sizeof buffer).kind ==
           Transfer::Kind::kWouldBlock;
  }
};

TEST_CASE("silent link: its end is a departure, and no verdict by itself") {
  Rig rig;
  CHECK_FALSE(rig.zero.watch->has_departures());
  rig.stock->close();
  REQUIRE(eventually([&] { return rig.zero.watch->has_departures(); }));
  const auto departure = rig.zero.watch->departure(-1);
  REQUIRE(departure);
  CHECK(departure->rank == 1);
  CHECK(departure->how == "closed");
  CHECK_FALSE(departure->is_expiry);
  CHECK(rig.zero.watch->departure(1));
  CHECK_FALSE(rig.zero.watch->departure(2));
  CHECK(rig.zero.abort.verdict() == nullptr);
}

TEST_CASE("silent link: a verdict is told to our ranks, and not written to it") {
  Rig rig;
  rig.zero.watch->report(VerdictKind::kDied, 1, "seen by a test", false);
  const auto frame = rig.ours->hear();
  REQUIRE(frame);
  CHECK(frame->type == FrameType::kVerdict);
  CHECK(frame->verdict.rank == 1);
  CHECK(rig.hears_nothing());
}

TEST_CASE("silent link: what comes on it is understood by nobody, and does no harm") {
  Rig rig;
  rig.stock->say(FrameType::kReport, VerdictKind::kDied, 2);
  rig.stock->say(std::vector<std::byte>(10'000, std::byte{7}));
  rig.stock->close();
  REQUIRE(eventually([&] { return rig.zero.watch->has_departures(); }));
  CHECK(rig.zero.abort.verdict() == nullptr);
}

TEST_CASE("silent link: an orderly end says goodbye to ours alone, and waits for no stock rank") {
  Rig rig;
  rig.ours->say(FrameType::kGoodbye, VerdictKind::kNone, 2);
  const Nanos before = now_ns();
  rig.zero.watch->end(Watch::Goodbye::kOrderly, 30 * kSecond);
  CHECK(now_ns() - before < 10 * kSecond);
  std::byte buffer[64];
  REQUIRE(eventually([&] {
    const Transfer got = receive_some(rig.stock->link().get(), buffer, sizeof buffer);
    REQUIRE(got.kind != Transfer::Kind::kMoved);
    return got.kind == Transfer::Kind::kEnd;
  }));
}

TEST_CASE("silent link: where rank 0 is silent, each rank decides for itself, at once") {
  WatchedRank one;
  WatchConfig config = watch_config(1, 3);
  config.shape.is_solitary = true;
  config.silent = {0};
  auto [a, b] = test::socket_pair();
  config.links.emplace_back(0, std::move(a));
  BareRank zero(std::move(b));
  one.start(std::move(config));
  one.watch->report(VerdictKind::kMismatch, 2, "seen by a test", false);
  REQUIRE(eventually([&] { return one.abort.verdict() != nullptr; }));
  CHECK(one.abort.verdict()->rank == 2);
  CHECK(one.abort.verdict()->cause == "seen by a test");
}

}  // namespace
}  // namespace standfast
