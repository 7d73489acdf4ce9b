// Memory that is lent instead of copied: what the arena gives out, and frames that the peer reads
// where they lie.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fabric/shm/arena.h"
#include "core/fabric/shm/route.h"
#include "tests/core/shm_pair.h"

namespace standfast {
namespace {

using test::pattern;
using test::ShmPair;
using test::Sleeper;
using test::tag_of;

constexpr std::size_t kPage = 4096;

// A stretch of the arena, filled with a pattern.
class Lendable {
 public:
  explicit Lendable(std::size_t bytes, std::uint32_t seed = 1)
      : arena_(*Arena::here()), bytes_(bytes), memory_(arena_.take(bytes)) {
    REQUIRE(memory_ != nullptr);
    const std::vector<std::byte> filling = pattern(bytes, seed);
    std::copy(filling.begin(), filling.end(), memory_);
  }
  Lendable(const Lendable&) = delete;
  Lendable& operator=(const Lendable&) = delete;
  ~Lendable() { arena_.give_back(memory_, bytes_); }
  std::byte* data() const { return memory_; }

 private:
  Arena& arena_;
  std::size_t bytes_;
  std::byte* memory_;
};

}  // namespace

// Stretches are taken from the lowest place that fits, and what comes back joins its neighbours.
TEST_CASE("shm lend: stretches") {
  Stretches stretches(1, 10);
  CHECK_FALSE(stretches.take(10));
  CHECK(*stretches.take(3) == 1);
  CHECK(*stretches.take(3) == 4);
  CHECK(*stretches.take(3) == 7);
  CHECK_FALSE(stretches.take(1));
  stretches.give_back(4, 3);
  CHECK_FALSE(stretches.take(4));
  stretches.give_back(1, 3);
  CHECK(*stretches.take(6) == 1);
  stretches.give_back(1, 6);
  stretches.give_back(7, 3);
  CHECK(*stretches.take(9) == 1);
}

// Whatever is taken and given back in whatever order: no two stretches overlap, and in the end all
// is one again.
TEST_CASE("shm lend: stretches at random") {
  Stretches stretches(0, 1000);
  std::vector<std::pair<std::size_t, std::size_t>> taken;
  std::vector<bool> used(1000, false);
  std::uint32_t state = 7;
  const auto random = [&](std::uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  for (int turn = 0; turn < 5000; ++turn) {
    if (random(2) == 0 && !taken.empty()) {
      const std::size_t which = random(static_cast<std::uint32_t>(taken.size()));
      const auto [offset, bytes] = taken[which];
      std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(offset), bytes, false);
      stretches.give_back(offset, bytes);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const std::size_t bytes = 1 + random(60);
    const auto offset = stretches.take(bytes);
    if (!offset) continue;
    REQUIRE(*offset + bytes <= 1000);
    for (std::size_t i = *offset; i < *offset + bytes; ++i) {
      REQUIRE_FALSE(used[i]);
      used[i] = true;
    }
    taken.emplace_back(*offset, bytes);
  }
  for (const auto& [offset, bytes] : taken) stretches.give_back(offset, bytes);
  CHECK(*stretches.take(1000) == 0);
}

// Memory is zero and page-aligned, another mapping shows the same, and it goes when it is given
// back, though it is still mapped there.
TEST_CASE("shm lend: arena") {
  Arena& arena = *Arena::here();
  const std::unique_ptr<RegionMapping> seen = RegionMapping::of(arena.name());
  REQUIRE(seen);
  struct stat before{};
  REQUIRE(fstat(arena.name().fd, &before) == 0);
  constexpr std::size_t kBytes = 64 * kPage + 1;
  std::byte* memory = arena.take(kBytes);
  REQUIRE(memory != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % kPage == 0);
  CHECK(std::all_of(memory, memory + kBytes, [](std::byte each) { return each == std::byte{0}; }));
  const std::uint64_t offset = *arena.offset_of(memory, kBytes);
  const std::vector<std::byte> filling = pattern(kBytes, 3);
  std::copy(filling.begin(), filling.end(), memory);
  CHECK(std::memcmp(seen->at(offset, kBytes), filling.data(), kBytes) == 0);
  struct stat status{};
  REQUIRE(fstat(arena.name().fd, &status) == 0);
  CHECK(status.st_blocks - before.st_blocks >= static_cast<long>(kBytes / 512));
  arena.give_back(memory, kBytes);
  REQUIRE(fstat(arena.name().fd, &status) == 0);
  CHECK(status.st_blocks == before.st_blocks);
  CHECK(seen->at(offset, 1)[0] == std::byte{0});
  CHECK(arena.take(static_cast<std::size_t>(arena.name().bytes)) == nullptr);
}

// Only what lies in the region is in it, to the last byte, and nothing else can be reached.
TEST_CASE("shm lend: bounds") {
  const Arena& arena = *Arena::here();
  const std::unique_ptr<RegionMapping> seen = RegionMapping::of(arena.name());
  REQUIRE(seen);
  const auto bytes = static_cast<std::size_t>(arena.name().bytes);
  const Lendable memory(kPage);
  const std::byte* begin = memory.data() - *arena.offset_of(memory.data(), kPage);
  CHECK(*arena.offset_of(begin + bytes - 1, 1) == bytes - 1);
  CHECK_FALSE(arena.offset_of(begin + bytes - 1, 2));
  CHECK_FALSE(arena.offset_of(begin + bytes, 1));
  CHECK_FALSE(arena.offset_of(begin - 1, 1));
  CHECK_FALSE(arena.offset_of(&seen, sizeof seen));
  CHECK(seen->at(bytes - 1, 1) != nullptr);
  CHECK(seen->at(bytes - 1, 2) == nullptr);
  CHECK(seen->at(bytes + 1, 0) == nullptr);
  CHECK(seen->at(8, bytes) == nullptr);
}

// A region is mapped only if it is the one that was meant: not after its maker's end, not another.
TEST_CASE("shm lend: which region") {
  RegionName name = Arena::here()->name();
  CHECK(RegionMapping::of(name));
  name.key ^= 2;
  CHECK_FALSE(RegionMapping::of(name));
  name = Arena::here()->name();
  name.bytes += kPage;
  CHECK_FALSE(RegionMapping::of(name));
  name = Arena::here()->name();
  name.fd = 100'000;
  CHECK_FALSE(RegionMapping::of(name));
  const pid_t child = test::fork_process();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  name = Arena::here()->name();
  name.pid = child;
  CHECK_FALSE(RegionMapping::of(name));
}

// A forked child has an arena of its own, and takes nothing from its parent's by giving back.
TEST_CASE("shm lend: in a forked child") {
  const Lendable memory(kPage, 9);
  Arena* parents = Arena::here();
  const std::size_t taken = parents->bytes_taken();
  const pid_t child = test::fork_process();
  if (child == 0) {
    parents->give_back(memory.data(), kPage);
    Arena* own = Arena::here();
    const bool is_right = own != nullptr && own != parents && own->name().pid == getpid() &&
                          own->take(kPage) != nullptr && !own->offset_of(memory.data(), kPage);
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(parents->bytes_taken() == taken);
  CHECK(std::memcmp(memory.data(), pattern(kPage, 9).data(), kPage) == 0);
}

// A long frame out of the arena is shown where it lies; flush() waits until it is released.
TEST_CASE("shm lend: read in place") {
  ShmPair pair;
  pair.introduce();
  const Lendable memory(kFrameBytes);
  REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kFrameBytes) == Turn::kDone);
  CHECK(pair.wires.a->sending());
  CHECK(pair.wires.a->flush() == Turn::kNotYet);
  const std::byte* at = pair.seen(tag_of(1), kFrameBytes);
  CHECK_FALSE(pair.is_in_segment(at));
  CHECK(std::memcmp(at, memory.data(), kFrameBytes) == 0);
  CHECK(pair.wires.a->flush() == Turn::kNotYet);
  CHECK(pair.wires.b->release() == Turn::kDone);
  CHECK(pair.wires.a->flush() == Turn::kDone);
  CHECK_FALSE(pair.wires.a->sending());
}

// What is short, what lies elsewhere, and messages that must not wait for their receiver are
// copied, as is everything before the peer knows the arena.
TEST_CASE("shm lend: what is copied") {
  ShmPair pair;
  const Lendable memory(kFrameBytes);
  const std::vector<std::byte> elsewhere = pattern(kFrameBytes, 2);
  const auto is_copied = [&](Tag tag, const std::byte* data, std::size_t bytes) {
    REQUIRE(pair.wires.a->send(tag, data, bytes) == Turn::kDone);
    const bool is_flushed = pair.wires.a->flush() == Turn::kDone;
    const std::byte* at = pair.seen(tag, bytes);
    CHECK(std::memcmp(at, data, bytes) == 0);
    const bool is_in_segment = pair.is_in_segment(at);
    CHECK(is_flushed == is_in_segment);
    CHECK(pair.wires.b->release() == Turn::kDone);
    CHECK(pair.wires.a->flush() == Turn::kDone);
    return is_in_segment;
  };
  CHECK(is_copied(tag_of(1), memory.data(), kFrameBytes));
  CHECK_FALSE(is_copied(tag_of(2), memory.data(), kFrameBytes));
  CHECK_FALSE(is_copied(tag_of(3), memory.data() + 1, kEagerBytes + 1));
  CHECK(is_copied(tag_of(4), memory.data(), kEagerBytes));
  CHECK(is_copied(tag_of(5), memory.data(), 1));
  CHECK(is_copied(tag_of(6, OpKind::kAllReduce), elsewhere.data(), kFrameBytes));
  Tag message = tag_of(7, OpKind::kSend);
  message.count = kEagerMessageBytes;
  CHECK(is_copied(message, memory.data(), kFrameBytes));
  message.count = kEagerMessageBytes + 1;
  CHECK_FALSE(is_copied(message, memory.data(), kFrameBytes));
}

// Of a message that is limited by memory, sender and receiver copy half each.
TEST_CASE("shm lend: every other frame of a long message") {
  ShmPair pair;
  pair.introduce();
  const Lendable memory(kFrameBytes);
  for (const OpKind kind : {OpKind::kSend, OpKind::kBroadcast, OpKind::kAllGather}) {
    CAPTURE(static_cast<int>(kind));
    Tag tag = tag_of(1, kind);
    int lent[2] = {0, 0};
    for (int turn = 0; turn < 8; ++turn) {
      tag.count = turn % 2 == 0 ? kTwoCoresBytes : kTwoCoresBytes - 1;
      for (int frame = 0; frame < 2; ++frame) {
        REQUIRE(pair.wires.a->send(tag, memory.data(), kFrameBytes) == Turn::kDone);
        if (!pair.is_in_segment(pair.seen(tag, kFrameBytes))) ++lent[turn % 2];
        REQUIRE(pair.wires.b->release() == Turn::kDone);
      }
    }
    CHECK(lent[0] == (kind == OpKind::kAllGather ? 8 : 4));
    CHECK(lent[1] == 8);
  }
}

// Copied and lent frames in any mixture arrive in order, and no payload is overwritten while it is
// to be read: the window is full most of the time.
TEST_CASE("shm lend: mixed") {
  ShmPair pair;
  pair.introduce();
  const std::size_t sizes[] = {0, 32, 33, kEagerBytes, kEagerBytes + 1, kFrameBytes};
  std::vector<std::unique_ptr<Lendable>> lent;
  std::vector<std::vector<std::byte>> copied;
  for (std::uint32_t n = 0; n < 40; ++n) {
    lent.push_back(std::make_unique<Lendable>(kFrameBytes, n));
    copied.push_back(pattern(kFrameBytes, n));
  }
  std::uint32_t sent = 0;
  const auto bytes_of = [&](std::uint32_t n) { return sizes[(n * 5 + n / 6) % 6]; };
  for (std::uint32_t n = 0; n < 40; ++n) {
    CAPTURE(n);
    for (; sent < 40 && sent < n + kFramesInFlight - n % 3; ++sent) {
      const std::byte* data = sent % 3 == 0 ? copied[sent].data() : lent[sent]->data();
      REQUIRE(pair.wires.a->send(tag_of(sent), data, bytes_of(sent)) == Turn::kDone);
    }
    std::vector<std::byte> to(bytes_of(n));
    REQUIRE(pair.wires.b->receive(tag_of(n), to.data(), to.size()) == Turn::kDone);
    CHECK(std::equal(to.begin(), to.end(), copied[n].begin()));
  }
  CHECK(pair.wires.a->flush() == Turn::kDone);
}

// Memory that was taken back is never taken for what was sent, whatever the peer is at; a frame
// that it has released by then is.
TEST_CASE("shm lend: withdrawn") {
  for (const bool by_view : {true, false}) {
    CAPTURE(by_view);
    ShmPair pair;
    pair.introduce();
    const Lendable memory(kFrameBytes);
    REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kFrameBytes) == Turn::kDone);
    REQUIRE(pair.wires.a->send(tag_of(2), memory.data(), kFrameBytes) == Turn::kDone);
    (void)pair.seen(tag_of(1), kFrameBytes);
    CHECK(pair.wires.b->release() == Turn::kDone);
    if (by_view) (void)pair.seen(tag_of(2), kFrameBytes);
    pair.wires.a->withdraw();
    std::memset(memory.data(), 0, kFrameBytes);
    std::vector<std::byte> to(kFrameBytes);
    const Turn turn =
        by_view ? pair.wires.b->release() : pair.wires.b->receive(tag_of(2), to.data(), to.size());
    CHECK(turn == Turn::kBroken);
    CHECK(pair.wires.b->trouble().find("before what it had lent was read") != std::string::npos);
    CHECK(pair.wires.a->flush() == Turn::kNotYet);
  }
}

// What was copied stays what was sent, whatever failed later.
TEST_CASE("shm lend: withdrawing takes nothing that was copied") {
  ShmPair pair;
  pair.introduce();
  std::vector<std::byte> memory = pattern(kEagerBytes, 6);
  const std::vector<std::byte> sent = memory;
  REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kEagerBytes) == Turn::kDone);
  pair.wires.a->withdraw();
  std::memset(memory.data(), 0, kEagerBytes);
  std::vector<std::byte> to(kEagerBytes);
  CHECK(pair.wires.b->receive(tag_of(1), to.data(), to.size()) == Turn::kDone);
  CHECK(to == sent);
}

// A sleeper that waits for its memory is woken by the release.
TEST_CASE("shm lend: flush sleeps and is woken") {
  ShmPair pair;
  pair.introduce();
  const Lendable memory(kFrameBytes);
  Bell bells[2];
  Turn flushed = Turn::kBroken;
  test::Threads threads;
  threads.start([&] {
    Sleeper sleeper(bells[0], bells[1]);
    Wire& wire = *pair.wires.a;
    for (std::uint32_t n = 1; n <= 100; ++n) {
      const auto send = [&] { return wire.send(tag_of(n), memory.data(), kFrameBytes); };
      flushed = sleeper.until(wire, Half::kSending, send);
      if (flushed != Turn::kDone) return;
      flushed = sleeper.until(wire, Half::kSending, [&] { return wire.flush(); });
      if (flushed != Turn::kDone) return;
    }
  });
  Bell other[2];
  Sleeper sleeper(other[0], other[1]);
  for (std::uint32_t n = 1; n <= 100; ++n) {
    const std::byte* at = nullptr;
    const auto view = [&] { return pair.wires.b->view(tag_of(n), kFrameBytes, &at); };
    REQUIRE(sleeper.until(*pair.wires.b, Half::kReceiving, view) == Turn::kDone);
    REQUIRE(pair.wires.b->release() == Turn::kDone);
  }
  threads.join();
  CHECK(flushed == Turn::kDone);
}

// The peer's goodbye while its memory is still to be read by it: it never will be.
TEST_CASE("shm lend: the reader leaves") {
  ShmPair pair;
  pair.introduce();
  const Lendable memory(kFrameBytes);
  REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kFrameBytes) == Turn::kDone);
  pair.wires.b->say_goodbye();
  CHECK(pair.wires.a->flush() == Turn::kLeft);
}

// A peer that read everything and then left has read everything.
TEST_CASE("shm lend: the reader leaves afterwards") {
  ShmPair pair;
  pair.introduce();
  const Lendable memory(kFrameBytes);
  REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kFrameBytes) == Turn::kDone);
  (void)pair.seen(tag_of(1), kFrameBytes);
  CHECK(pair.wires.b->release() == Turn::kDone);
  pair.wires.b->say_goodbye();
  CHECK(pair.wires.a->flush() == Turn::kDone);
}

}  // namespace standfast
