// What every fabric promises of its wires: one suite, run over each.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/core/wires.h"

namespace standfast {
namespace {

using test::eventually;
using test::insist;
using test::pattern;
using test::Shm;
using test::Sleeper;
using test::Tcp;
using test::TightTcp;
using test::Verbs;
using test::VerbsSmall;
using test::WirePair;

const std::size_t kSizes[] = {0, 1, 31, 32, 33, 4096, kFrameBytes - 1, kFrameBytes};
constexpr std::byte kGuard{0x5a};

Tag tag_of(std::uint32_t seq, std::uint64_t count = 0) {
  Tag tag;
  tag.seq = seq;
  tag.kind = OpKind::kSend;
  tag.count = count;
  return tag;
}

Turn send(WirePair& wires, Wire& from, const Tag& tag, const void* data, std::size_t bytes) {
  return insist(wires, from, Half::kSending, [&] { return from.send(tag, data, bytes); });
}

Turn receive(WirePair& wires, Wire& at, const Tag& tag, void* to, std::size_t bytes) {
  return insist(wires, at, Half::kReceiving, [&] { return at.receive(tag, to, bytes); });
}

Turn flush(WirePair& wires, Wire& from) {
  return insist(wires, from, Half::kSending, [&] { return from.flush(); });
}

// Sends until nothing more is accepted: frame n carries n. Returns how many were.
std::uint32_t fill(Wire& from, std::vector<std::vector<std::byte>>& frames, std::size_t bytes,
                   std::uint32_t limit = 10'000) {
  for (std::uint32_t n = 0; n < limit; ++n) {
    if (n == frames.size()) frames.push_back(pattern(bytes, n));
    if (from.send(tag_of(n), frames[n].data(), bytes) != Turn::kDone) return n;
  }
  return limit;
}

#define EVERY_FABRIC Shm, Tcp, TightTcp, Verbs, VerbsSmall

}  // namespace

// A frame of any size arrives as it was sent, in both directions, and nothing beside it is touched.
TEST_CASE_TEMPLATE("wire: every size arrives", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  std::uint32_t seq = 0;
  for (const std::size_t bytes : kSizes) {
    for (const bool forth : {true, false}) {
      CAPTURE(bytes);
      CAPTURE(forth);
      Wire& from = forth ? *wires.a : *wires.b;
      Wire& to = forth ? *wires.b : *wires.a;
      const std::vector<std::byte> sent = pattern(bytes, ++seq);
      std::vector<std::byte> memory(bytes + 2, kGuard);
      REQUIRE(send(wires, from, tag_of(seq, bytes), sent.data(), bytes) == Turn::kDone);
      REQUIRE(receive(wires, to, tag_of(seq, bytes), memory.data() + 1, bytes) == Turn::kDone);
      CHECK(std::equal(sent.begin(), sent.end(), memory.begin() + 1));
      CHECK(memory.front() == kGuard);
      CHECK(memory.back() == kGuard);
      CHECK(flush(wires, from) == Turn::kDone);
      CHECK_FALSE(from.sending());
    }
  }
}

// Nothing sent is nothing received, however often one asks and by whichever way.
TEST_CASE_TEMPLATE("wire: nothing yet", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  std::byte memory{};
  const std::byte* seen = nullptr;
  Tag tag;
  std::size_t bytes = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(wires.b->receive(tag_of(1), &memory, 1) == Turn::kNotYet);
    CHECK(wires.b->view(tag_of(1), 1, &seen) == Turn::kNotYet);
    CHECK(wires.b->peek(&tag, &bytes) == Turn::kNotYet);
    CHECK(wires.b->flush() == Turn::kDone);
    test::look(*wires.b, Half::kReceiving);
    test::look(*wires.b, Half::kSending);
  }
}

// kFramesInFlight frames of any size go out before the peer takes one; the pipelines rely on it.
TEST_CASE_TEMPLATE("wire: frames in flight", Fabric, EVERY_FABRIC) {
  for (const std::size_t bytes : kSizes) {
    CAPTURE(bytes);
    WirePair wires = Fabric::make();
    std::vector<std::vector<std::byte>> frames;
    constexpr auto kFrames = static_cast<std::uint32_t>(kFramesInFlight);
    CHECK(fill(*wires.a, frames, bytes, kFrames) == kFrames);
  }
}

// A full window takes no more, goes on as soon as the peer takes a frame, and loses nothing.
TEST_CASE_TEMPLATE("wire: a full window", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  std::vector<std::vector<std::byte>> frames;
  const std::uint32_t accepted = fill(*wires.a, frames, kFrameBytes);
  REQUIRE(accepted < 10'000);
  for (int i = 0; i < 3; ++i) {
    CHECK(wires.a->send(tag_of(accepted), frames[accepted].data(), kFrameBytes) == Turn::kNotYet);
  }
  std::vector<std::byte> memory(kFrameBytes);
  std::uint32_t sent = accepted;
  for (std::uint32_t n = 0; n < sent; ++n) {
    CAPTURE(n);
    REQUIRE(receive(wires, *wires.b, tag_of(n), memory.data(), kFrameBytes) == Turn::kDone);
    CHECK(memory == frames[n]);
    if (n % 3 != 0 || sent >= accepted + 5) continue;
    if (sent == frames.size()) frames.push_back(pattern(kFrameBytes, sent));
    if (wires.a->send(tag_of(sent), frames[sent].data(), kFrameBytes) == Turn::kDone) ++sent;
  }
  CHECK(sent > accepted);
  CHECK(flush(wires, *wires.a) == Turn::kDone);
}

// A viewed frame stays as it is until it is released, whatever the sender sends meanwhile.
TEST_CASE_TEMPLATE("wire: view and release", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  std::vector<std::vector<std::byte>> frames;
  const std::uint32_t accepted = fill(*wires.a, frames, kFrameBytes);
  for (std::uint32_t n = 0; n < 3; ++n) {
    CAPTURE(n);
    const std::byte* seen = nullptr;
    REQUIRE(insist(wires, *wires.b, Half::kReceiving,
                   [&] { return wires.b->view(tag_of(n), kFrameBytes, &seen); }) == Turn::kDone);
    REQUIRE(wires.a->flush() != Turn::kBroken);
    const Turn more = wires.a->send(tag_of(accepted + n), frames[0].data(), kFrameBytes);
    REQUIRE(more != Turn::kBroken);
    CHECK(std::memcmp(seen, frames[n].data(), kFrameBytes) == 0);
    const std::byte* again = nullptr;
    CHECK(wires.b->view(tag_of(n), kFrameBytes, &again) == Turn::kDone);
    CHECK(again == seen);
    CHECK(wires.b->release() == Turn::kDone);
  }
}

// Small frames can be viewed too, empty ones included.
TEST_CASE_TEMPLATE("wire: view of every size", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  std::uint32_t seq = 0;
  for (const std::size_t bytes : kSizes) {
    CAPTURE(bytes);
    const std::vector<std::byte> sent = pattern(bytes, ++seq);
    REQUIRE(send(wires, *wires.a, tag_of(seq), sent.data(), bytes) == Turn::kDone);
    const std::byte* seen = nullptr;
    REQUIRE(insist(wires, *wires.b, Half::kReceiving,
                   [&] { return wires.b->view(tag_of(seq), bytes, &seen); }) == Turn::kDone);
    CHECK(std::equal(sent.begin(), sent.end(), seen));
    CHECK(wires.b->release() == Turn::kDone);
    CHECK(flush(wires, *wires.a) == Turn::kDone);
  }
}

// Peeking tells the next frame's tag and size and leaves it where it is.
TEST_CASE_TEMPLATE("wire: peek", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  const std::vector<std::byte> first = pattern(1000, 1);
  const std::vector<std::byte> second = pattern(5, 2);
  REQUIRE(send(wires, *wires.a, tag_of(1, 77), first.data(), first.size()) == Turn::kDone);
  REQUIRE(send(wires, *wires.a, tag_of(2, 88), second.data(), second.size()) == Turn::kDone);
  Tag tag;
  std::size_t bytes = 0;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(insist(wires, *wires.b, Half::kReceiving,
                   [&] { return wires.b->peek(&tag, &bytes); }) == Turn::kDone);
    CHECK(tag == tag_of(1, 77));
    CHECK(bytes == 1000);
  }
  std::vector<std::byte> memory(1000);
  CHECK(receive(wires, *wires.b, tag_of(1, 77), memory.data(), 1000) == Turn::kDone);
  CHECK(memory == first);
  REQUIRE(insist(wires, *wires.b, Half::kReceiving, [&] { return wires.b->peek(&tag, &bytes); }) ==
          Turn::kDone);
  CHECK(tag == tag_of(2, 88));
  CHECK(bytes == 5);
}

// A frame of another operation, or of another size, is told and not delivered, and is not lost.
TEST_CASE_TEMPLATE("wire: mismatch", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  const std::vector<std::byte> sent = pattern(100, 1);
  REQUIRE(send(wires, *wires.a, tag_of(1, 9), sent.data(), 100) == Turn::kDone);
  std::vector<std::byte> memory(200, kGuard);
  Tag other_op = tag_of(1, 9);
  other_op.op = ReduceOp::kMax;
  Tag other_root = tag_of(1, 9);
  other_root.root_or_tag = 1;
  for (const Tag& wrong : {tag_of(2, 9), tag_of(1, 8), other_op, other_root}) {
    CHECK(receive(wires, *wires.b, wrong, memory.data(), 100) == Turn::kMismatch);
    CHECK(wires.b->got() == tag_of(1, 9));
    CHECK(wires.b->got_bytes() == 100);
  }
  for (const std::size_t wrong : {0u, 99u, 101u, 200u}) {
    CAPTURE(wrong);
    CHECK(receive(wires, *wires.b, tag_of(1, 9), memory.data(), wrong) == Turn::kMismatch);
    CHECK(wires.b->got_bytes() == 100);
    const std::byte* seen = nullptr;
    CHECK(wires.b->view(tag_of(1, 9), wrong, &seen) == Turn::kMismatch);
  }
  CHECK(memory == std::vector<std::byte>(200, kGuard));
  CHECK(receive(wires, *wires.b, tag_of(1, 9), memory.data(), 100) == Turn::kDone);
  CHECK(std::equal(sent.begin(), sent.end(), memory.begin()));
}

// A peer that said goodbye has left only once everything it sent was received, and for good.
TEST_CASE_TEMPLATE("wire: goodbye comes last", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  const std::vector<std::byte> sent = pattern(kFrameBytes, 1);
  for (std::uint32_t n = 0; n < 3; ++n) {
    REQUIRE(send(wires, *wires.a, tag_of(n), sent.data(), 1000) == Turn::kDone);
  }
  REQUIRE(flush(wires, *wires.a) == Turn::kDone);
  wires.a->say_goodbye();
  wires.a->shut_down();
  wires.a.reset();
  std::vector<std::byte> memory(1000);
  for (std::uint32_t n = 0; n < 3; ++n) {
    REQUIRE(receive(wires, *wires.b, tag_of(n), memory.data(), 1000) == Turn::kDone);
    CHECK(std::equal(memory.begin(), memory.end(), sent.begin()));
  }
  const std::byte* seen = nullptr;
  Tag tag;
  std::size_t bytes = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(receive(wires, *wires.b, tag_of(3), memory.data(), 0) == Turn::kLeft);
    CHECK(wires.b->view(tag_of(3), 0, &seen) == Turn::kLeft);
    CHECK(wires.b->peek(&tag, &bytes) == Turn::kLeft);
  }
}

// An end without goodbye is a broken wire, but not before what had come completely was received.
TEST_CASE_TEMPLATE("wire: an end without goodbye comes last, too", Fabric, EVERY_FABRIC) {
  for (const bool by_shut_down : {false, true}) {
    CAPTURE(by_shut_down);
    WirePair wires = Fabric::make();
    const std::vector<std::byte> sent = pattern(1000, 1);
    REQUIRE(send(wires, *wires.a, tag_of(0), sent.data(), 1000) == Turn::kDone);
    REQUIRE(send(wires, *wires.a, tag_of(1), nullptr, 0) == Turn::kDone);
    REQUIRE(flush(wires, *wires.a) == Turn::kDone);
    if (by_shut_down) wires.a->shut_down();
    if (!by_shut_down) wires.a.reset();
    test::look(*wires.b, Half::kReceiving);  // the end may be seen first
    std::vector<std::byte> memory(1000);
    REQUIRE(receive(wires, *wires.b, tag_of(0), memory.data(), 1000) == Turn::kDone);
    CHECK(memory == sent);
    REQUIRE(receive(wires, *wires.b, tag_of(1), memory.data(), 0) == Turn::kDone);
    Tag tag;
    std::size_t bytes = 0;
    for (int i = 0; i < 3; ++i) {
      CHECK(receive(wires, *wires.b, tag_of(2), memory.data(), 0) == Turn::kBroken);
      CHECK(wires.b->peek(&tag, &bytes) == Turn::kBroken);
      CHECK(wires.b->trouble() != "");
    }
  }
}

// A sender does not wait for who is gone, whether it left in good order or not.
TEST_CASE_TEMPLATE("wire: a full window to who is gone", Fabric, EVERY_FABRIC) {
  for (const bool with_goodbye : {false, true}) {
    for (const bool is_closed : {false, true}) {
      CAPTURE(with_goodbye);
      CAPTURE(is_closed);
      WirePair wires = Fabric::make();
      std::vector<std::vector<std::byte>> frames;
      std::uint32_t sent = fill(*wires.a, frames, kFrameBytes);
      if (with_goodbye) wires.b->say_goodbye();
      if (!with_goodbye || is_closed) wires.b->shut_down();
      if (is_closed) wires.b.reset();
      Turn turn = Turn::kDone;
      while (turn == Turn::kDone) {
        turn = send(wires, *wires.a, tag_of(sent++), frames[0].data(), kFrameBytes);
      }
      CHECK((turn == Turn::kBroken || (with_goodbye && turn == Turn::kLeft)));
    }
  }
}

// The peer's goodbye does not take away what it sent before, even where the other half is full.
TEST_CASE_TEMPLATE("wire: the halves end apart", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  std::vector<std::vector<std::byte>> frames;
  (void)fill(*wires.a, frames, kFrameBytes);
  const std::vector<std::byte> last = pattern(100, 7);
  REQUIRE(wires.b->send(tag_of(1), last.data(), 100) == Turn::kDone);
  REQUIRE(wires.b->flush() == Turn::kDone);
  wires.b->say_goodbye();
  Turn stuck = Turn::kDone;
  while (stuck == Turn::kDone) {
    stuck = send(wires, *wires.a, tag_of(0), frames[0].data(), kFrameBytes);
  }
  CHECK((stuck == Turn::kLeft || stuck == Turn::kBroken));
  std::vector<std::byte> memory(100);
  CHECK(receive(wires, *wires.a, tag_of(1), memory.data(), 100) == Turn::kDone);
  CHECK(memory == last);
  CHECK(receive(wires, *wires.a, tag_of(2), memory.data(), 0) == Turn::kLeft);
}

// Nothing that a wire does raises a signal, nor costs the process its life.
TEST_CASE_TEMPLATE("wire: use after the end", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  wires.a->shut_down();
  wires.a->shut_down();
  const std::byte data{};
  for (Wire* wire : {wires.a.get(), wires.b.get()}) {
    for (std::uint32_t n = 0; n < 20; ++n) (void)wire->send(tag_of(n), &data, 1);
    (void)wire->flush();
    wire->say_goodbye();
    wire->say_goodbye();
    std::byte memory{};
    (void)wire->receive(tag_of(0), &memory, 1);
    wire->shut_down();
  }
  wires.a->abandon();
  wires.a->shut_down();
}

namespace {

const std::vector<std::byte>& shared_data() {
  static const std::vector<std::byte> data = pattern(kFrameBytes + 256, 99);
  return data;
}

std::size_t size_of_frame(std::uint32_t n) {
  constexpr std::size_t sizes[] = {0, 1, 32, 33, 500, 5000, 70'000, kFrameBytes};
  return sizes[(n * 2654435761u >> 13) % 8];
}

// What went wrong in a thread, or nothing.
using Complaint = std::string;

// Frames 0..count, each flushed before the next but one.
Complaint send_frames(Wire& wire, Sleeper sleeper, std::uint32_t count) {
  for (std::uint32_t n = 0; n < count; ++n) {
    const std::byte* data = shared_data().data() + n % 256;
    const std::size_t bytes = size_of_frame(n);
    const Turn sent = sleeper.until(wire, Half::kSending,
                                    [&] { return wire.send(tag_of(n, bytes), data, bytes); });
    if (sent != Turn::kDone) return "frame " + std::to_string(n) + " could not be sent";
    if (n % 5 != 0) continue;
    const Turn flushed = sleeper.until(wire, Half::kSending, [&] { return wire.flush(); });
    if (flushed != Turn::kDone) return "frame " + std::to_string(n) + " could not be flushed";
  }
  const Turn flushed = sleeper.until(wire, Half::kSending, [&] { return wire.flush(); });
  return flushed == Turn::kDone ? "" : "the last frames could not be flushed";
}

Complaint receive_frames(Wire& wire, Sleeper sleeper, std::uint32_t count) {
  std::vector<std::byte> memory(kFrameBytes);
  for (std::uint32_t n = 0; n < count; ++n) {
    const std::byte* expected = shared_data().data() + n % 256;
    const std::size_t bytes = size_of_frame(n);
    const std::byte* seen = memory.data();
    const bool by_view = n % 2 == 0;
    const Turn turn = sleeper.until(wire, Half::kReceiving, [&] {
      return by_view ? wire.view(tag_of(n, bytes), bytes, &seen)
                     : wire.receive(tag_of(n, bytes), memory.data(), bytes);
    });
    if (turn != Turn::kDone) return "frame " + std::to_string(n) + " did not come";
    if (bytes > 0 && std::memcmp(seen, expected, bytes) != 0) {
      return "frame " + std::to_string(n) + " came with other bytes";
    }
    if (by_view && wire.release() != Turn::kDone) return "it was withdrawn";
  }
  return "";
}

}  // namespace

// Four threads, one per half, that sleep whenever they can: every frame arrives and nobody is left
// asleep, though the two halves of an end share one bell.
TEST_CASE_TEMPLATE("wire: both halves at once", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  constexpr std::uint32_t kFrames = 600;
  Bell bells[4];
  Complaint complaints[4];
  test::Threads threads;
  threads.start([&] { complaints[0] = send_frames(*wires.a, {bells[0], bells[1]}, kFrames); });
  threads.start([&] { complaints[1] = receive_frames(*wires.a, {bells[1], bells[0]}, kFrames); });
  threads.start([&] { complaints[2] = send_frames(*wires.b, {bells[2], bells[3]}, kFrames); });
  threads.start([&] { complaints[3] = receive_frames(*wires.b, {bells[3], bells[2]}, kFrames); });
  threads.join();
  for (const Complaint& complaint : complaints) CHECK(complaint == "");
}

// Two threads that answer each other, always asleep in between: the shortest way to lose a ring.
TEST_CASE_TEMPLATE("wire: ping-pong between sleepers", Fabric, EVERY_FABRIC) {
  WirePair wires = Fabric::make();
  constexpr std::uint32_t kRounds = 2000;
  Bell bells[2];
  std::atomic<int> failures{0};
  const auto play = [&](Wire& wire, const Bell& bell, bool starts) {
    Sleeper sleeper(bell, bell);
    for (std::uint32_t n = 0; n < kRounds; ++n) {
      std::uint32_t sent = n;
      std::uint32_t got = 0;
      const auto send_one = [&] {
        return sleeper.until(wire, Half::kSending,
                             [&] { return wire.send(tag_of(n), &sent, sizeof sent); });
      };
      if (starts && send_one() != Turn::kDone) return ++failures;
      const Turn turn = sleeper.until(wire, Half::kReceiving,
                                      [&] { return wire.receive(tag_of(n), &got, sizeof got); });
      if (turn != Turn::kDone || got != n) return ++failures;
      if (!starts && send_one() != Turn::kDone) return ++failures;
    }
    return 0;
  };
  test::Threads threads;
  threads.start([&] { play(*wires.a, bells[0], true); });
  threads.start([&] { play(*wires.b, bells[1], false); });
  threads.join();
  CHECK(failures == 0);
}

// A goodbye and an end wake a sleeper, in either half.
TEST_CASE_TEMPLATE("wire: ends wake sleepers", Fabric, EVERY_FABRIC) {
  for (const bool with_goodbye : {false, true}) {
    CAPTURE(with_goodbye);
    WirePair wires = Fabric::make();
    std::vector<std::vector<std::byte>> frames;
    const std::uint32_t sent = fill(*wires.a, frames, kFrameBytes);
    constexpr std::uint32_t kLast = 5;  // frames that come before the end
    Bell bells[2];
    Turn turns[2] = {Turn::kDone, Turn::kDone};
    std::atomic<int> running{0};
    test::Threads threads;
    threads.start([&] {
      Sleeper sleeper(bells[0], bells[1]);
      ++running;
      std::byte memory{};
      for (std::uint32_t n = 0; turns[0] == Turn::kDone && n <= kLast; ++n) {
        turns[0] = sleeper.until(*wires.a, Half::kReceiving,
                                 [&] { return wires.a->receive(tag_of(n), &memory, 1); });
      }
    });
    threads.start([&] {
      Sleeper sleeper(bells[1], bells[0]);
      ++running;
      while (turns[1] == Turn::kDone) {
        turns[1] = sleeper.until(*wires.a, Half::kSending, [&] {
          return wires.a->send(tag_of(sent), frames[0].data(), kFrameBytes);
        });
      }
    });
    CHECK(eventually([&] { return running == 2; }));
    for (std::uint32_t n = 0; n < kLast; ++n) {
      CHECK(wires.b->send(tag_of(n), "x", 1) == Turn::kDone);
    }
    if (with_goodbye) wires.b->say_goodbye();
    wires.b->shut_down();
    wires.b.reset();
    threads.join();
    CHECK(turns[0] == (with_goodbye ? Turn::kLeft : Turn::kBroken));
    CHECK((turns[1] == Turn::kBroken || (with_goodbye && turns[1] == Turn::kLeft)));
  }
}

// Messages name an operation as its caller knows it.
TEST_CASE("wire: describe") {
  Tag tag;
  tag.seq = 7;
  tag.kind = OpKind::kAllReduce;
  tag.dtype = DType::kFloat32;
  tag.count = 1024;
  CHECK(describe(tag) == "all_sum float32[1024] #7");
  tag.op = ReduceOp::kMax;
  CHECK(describe(tag) == "all_max float32[1024] #7");
  tag.kind = OpKind::kReduceScatter;
  CHECK(describe(tag) == "reduce_scatter(max) float32[1024] #7");
  tag.kind = OpKind::kBroadcast;
  tag.root_or_tag = 2;
  CHECK(describe(tag) == "broadcast(root=2) float32[1024] #7");
  tag.kind = OpKind::kSend;
  CHECK(describe(tag) == "send(tag=2) float32[1024] #7");
  tag.kind = OpKind::kBarrier;
  CHECK(describe(tag) == "barrier #7");
}

// What a damaged frame claims is described without reading beyond any table.
TEST_CASE("wire: describe damage") {
  for (int value = 0; value < 256; ++value) {
    Tag tag;
    tag.kind = static_cast<OpKind>(value);
    tag.dtype = static_cast<DType>(value);
    tag.op = static_cast<ReduceOp>(value);
    CHECK(describe(tag).size() < 200);
    tag.kind = OpKind::kAllReduce;
    CHECK(describe(tag).size() < 200);
  }
}

}  // namespace standfast
