// Frames that their receiver pulls out of the sender's own memory, and what it cannot pull.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/fabric/shm/pull.h"
#include "core/fabric/shm/route.h"
#include "tests/core/shm_pair.h"

namespace standfast {
namespace {

using test::pattern;
using test::ShmPair;
using test::Sleeper;
using test::tag_of;

// A page that can be made unreadable at any time.
class Page {
 public:
  Page() {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    memory_ = as_bytes(memory);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() { munmap(memory_, kBytes); }
  std::byte* data() const { return memory_; }
  void hide() const { REQUIRE(mprotect(memory_, kBytes, PROT_NONE) == 0); }
  void show() const { REQUIRE(mprotect(memory_, kBytes, PROT_READ | PROT_WRITE) == 0); }

 private:
  static constexpr std::size_t kBytes = kFrameBytes;
  std::byte* memory_;
};

Turn take(ShmPair& pair, bool by_view, const Tag& tag, std::vector<std::byte>& to) {
  if (!by_view) return pair.wires.b->receive(tag, to.data(), to.size());
  const std::byte* at = nullptr;
  const Turn turn = pair.wires.b->view(tag, to.size(), &at);
  if (turn != Turn::kDone) return turn;
  std::copy_n(at, to.size(), to.begin());
  return pair.wires.b->release();
}

}  // namespace

// What everybody sends to everybody is pulled, and so are messages of a middle size.
TEST_CASE("shm pull: which frames") {
  Tag tag;
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter,
                            OpKind::kAllToAll, OpKind::kSend, OpKind::kBroadcast}) {
    CAPTURE(static_cast<int>(kind));
    tag.kind = kind;
    const bool by_all = kind == OpKind::kAllGather || kind == OpKind::kAllToAll;
    const auto is_pulled = [&](std::size_t count) {
      tag.count = count;
      return is_better_pulled(tag, kFrameBytes);
    };
    CHECK(is_pulled(kFrameBytes) == by_all);
    CHECK(is_pulled(kEagerMessageBytes) == by_all);
    CHECK(is_pulled(kEagerMessageBytes + 1) == (by_all || kind == OpKind::kSend));
    CHECK(is_pulled(kTwoCoresBytes - 1) == (by_all || kind == OpKind::kSend));
    CHECK(is_pulled(kTwoCoresBytes) == by_all);
    CHECK_FALSE(is_better_pulled(tag, kEagerBytes));
  }
}

// A frame is pulled once, whether it is viewed or received, and flush() waits for that.
TEST_CASE("shm pull: pulled") {
  ShmPair pair;
  pair.introduce();
  std::vector<std::byte> memory = pattern(kFrameBytes, 4);
  const std::vector<std::byte> sent = memory;
  std::vector<std::byte> to(kFrameBytes);
  REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kFrameBytes) == Turn::kDone);
  REQUIRE(pair.wires.a->send(tag_of(2), memory.data(), kFrameBytes) == Turn::kDone);
  CHECK(pair.wires.a->flush() == Turn::kNotYet);
  const std::byte* at = pair.seen(tag_of(1), kFrameBytes);
  CHECK(at != memory.data());
  CHECK_FALSE(pair.is_in_segment(at));
  memory[0] ^= std::byte{1};  // only to see that the second look does not pull
  CHECK(pair.seen(tag_of(1), kFrameBytes) == at);
  CHECK(std::equal(sent.begin(), sent.end(), at));
  memory[0] ^= std::byte{1};
  CHECK(pair.wires.b->release() == Turn::kDone);
  CHECK(pair.wires.a->flush() == Turn::kNotYet);
  REQUIRE(pair.wires.b->receive(tag_of(2), to.data(), kFrameBytes) == Turn::kDone);
  CHECK(to == sent);
  CHECK(pair.wires.a->flush() == Turn::kDone);
}

// Memory that cannot be read, or that is another process's than was named, is never pulled.
TEST_CASE("shm pull: what cannot be pulled") {
  const PullName here = pull_name();
  REQUIRE(can_pull(here));
  std::uint64_t to = 0;
  CHECK(pull(here, here.key_at, &to, sizeof to));
  CHECK(to == here.key);
  CHECK_FALSE(pull(here, 8, &to, sizeof to));
  PullName other = here;
  other.key ^= 2;
  CHECK_FALSE(pull(other, here.key_at, &to, sizeof to));
  CHECK_FALSE(can_pull(PullName{}));
  other = here;
  const pid_t child = test::fork_process();
  if (child == 0) {
    for (;;) pause();
  }
  other.pid = child;  // as if it had got its parent's number
  CHECK_FALSE(can_pull(other));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK_FALSE(can_pull(other));
}

// A frame that its receiver turns out to be unable to pull is copied after all, by the sender's
// flush(); from then on frames are copied at once.
TEST_CASE("shm pull: refused") {
  for (const bool by_view : {true, false}) {
    CAPTURE(by_view);
    ShmPair pair;
    pair.introduce();
    const std::vector<std::byte> sent = pattern(kFrameBytes, 5);
    std::vector<std::byte> to(kFrameBytes);
    REQUIRE(pair.wires.a->send(tag_of(1), sent.data(), kFrameBytes) == Turn::kDone);
    REQUIRE(pair.wires.a->send(tag_of(2), sent.data(), kFrameBytes) == Turn::kDone);
    pair.lane_to_b().name.key ^= 2;
    for (std::uint32_t n = 1; n <= 2; ++n) {
      CAPTURE(n);
      CHECK(take(pair, by_view, tag_of(n), to) == Turn::kNotYet);
      CHECK(take(pair, by_view, tag_of(n), to) == Turn::kNotYet);
      CHECK(pair.wires.a->flush() == Turn::kNotYet);
      REQUIRE(take(pair, by_view, tag_of(n), to) == Turn::kDone);
      CHECK(to == sent);
    }
    CHECK(pair.wires.a->flush() == Turn::kDone);
    REQUIRE(pair.wires.a->send(tag_of(3), sent.data(), kFrameBytes) == Turn::kDone);
    CHECK(pair.wires.a->flush() == Turn::kDone);
    CHECK(take(pair, by_view, tag_of(3), to) == Turn::kDone);
  }
}

// Both sides asleep, and a frame that cannot be pulled: the refusal wakes the sender, and its copy
// the receiver.
TEST_CASE("shm pull: refused while both sleep") {
  ShmPair pair;
  pair.introduce();
  pair.lane_to_b().can_pull.store(1);
  pair.lane_to_b().name.key ^= 2;
  const std::vector<std::byte> sent = pattern(kFrameBytes, 7);
  std::vector<std::byte> to(kFrameBytes);
  Bell bells[2], other[2];
  Turn flushed = Turn::kBroken;
  test::Threads threads;
  threads.start([&] {
    Sleeper sleeper(bells[0], bells[1]);
    Wire& wire = *pair.wires.a;
    if (wire.send(tag_of(1), sent.data(), kFrameBytes) != Turn::kDone) return;
    flushed = sleeper.until(wire, Half::kSending, [&] { return wire.flush(); });
  });
  Sleeper sleeper(other[0], other[1]);
  const auto receive = [&] { return take(pair, false, tag_of(1), to); };
  REQUIRE(sleeper.until(*pair.wires.b, Half::kReceiving, receive) == Turn::kDone);
  threads.join();
  CHECK(flushed == Turn::kDone);
  CHECK(to == sent);
}

// A sender whose operation failed touches its caller's memory no more: not for a receiver that
// cannot pull, either.
TEST_CASE("shm pull: refused after it was withdrawn") {
  ShmPair pair;
  pair.introduce();
  const Page page;
  std::vector<std::byte> to(kFrameBytes);
  REQUIRE(pair.wires.a->send(tag_of(1), page.data(), kFrameBytes) == Turn::kDone);
  pair.wires.a->withdraw();
  page.hide();
  CHECK(take(pair, false, tag_of(1), to) == Turn::kNotYet);
  CHECK(pair.wires.a->flush() == Turn::kNotYet);  // a read of the page would be a signal
  CHECK(take(pair, false, tag_of(1), to) == Turn::kNotYet);
}

// What is pulled after the sender took its memory back is not taken for what was sent.
TEST_CASE("shm pull: withdrawn") {
  for (const bool by_view : {true, false}) {
    CAPTURE(by_view);
    ShmPair pair;
    pair.introduce();
    std::vector<std::byte> memory = pattern(kFrameBytes, 3);
    std::vector<std::byte> to(kFrameBytes);
    REQUIRE(pair.wires.a->send(tag_of(1), memory.data(), kFrameBytes) == Turn::kDone);
    pair.wires.a->withdraw();
    std::fill(memory.begin(), memory.end(), std::byte{0});
    CHECK(take(pair, by_view, tag_of(1), to) == Turn::kBroken);
  }
}

// The kernel's refusal to read the memory is no end: its owner, who can, copies it.
TEST_CASE("shm pull: refused by the kernel") {
  ShmPair pair;
  pair.introduce();
  const Page page;
  const std::vector<std::byte> sent = pattern(kFrameBytes, 8);
  std::copy(sent.begin(), sent.end(), page.data());
  std::vector<std::byte> to(kFrameBytes);
  REQUIRE(pair.wires.a->send(tag_of(1), page.data(), kFrameBytes) == Turn::kDone);
  page.hide();
  CHECK(take(pair, false, tag_of(1), to) == Turn::kNotYet);
  page.show();
  CHECK(pair.wires.a->flush() == Turn::kNotYet);
  CHECK(take(pair, false, tag_of(1), to) == Turn::kDone);
  CHECK(to == sent);
}

}  // namespace standfast
