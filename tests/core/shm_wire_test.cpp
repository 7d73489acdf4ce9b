// What only the shared-memory fabric can get wrong: segments and their names, frame numbers, bells.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/core/wires.h"

namespace standfast {
namespace {

using test::insist;
using test::pattern;
using test::shared_mapping;
using test::shm_wires;
using test::WirePair;

Tag tag_of(std::uint32_t seq) {
  Tag tag;
  tag.seq = seq;
  tag.kind = OpKind::kSend;
  return tag;
}

bool exists(const std::string& name) {
  const Fd fd(shm_open(name.c_str(), O_RDWR, 0));
  return fd.valid();
}

}  // namespace

// A segment is zero, private to its user, of full size, and two makers never share one.
TEST_CASE("shm segment: make and attach") {
  const NamedSegment made = make_segment();
  const NamedSegment other = make_segment();
  CHECK(made.name != other.name);
  CHECK(made.name.size() < 31);
  CHECK(made.name.rfind("/sf-" + std::to_string(getpid()) + "-", 0) == 0);
  struct stat status{};
  REQUIRE(fstat(made.fd.get(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(static_cast<std::size_t>(status.st_size) >= sizeof(Segment));

  const Fd attached = attach_segment(made.name);
  unlink_segment(made.name);
  unlink_segment(made.name);  // both ends remove it
  CHECK_FALSE(exists(made.name));
  unlink_segment(other.name);
  const Mapping here(made.fd.get());
  const Mapping there(attached.get());
  CHECK(here.segment().lanes[1].heads[7].ready == 0);
  here.segment().lanes[1].heads[7].ready = 5;
  CHECK(there.segment().lanes[1].heads[7].ready == 5);
  CHECK(there.segment().lanes[0].heads[7].ready == 0);
}

// A name that is not there, or leads to something too small, is refused before it is mapped.
TEST_CASE("shm segment: what can't be attached") {
  CHECK_THROWS_AS(attach_segment("/sf-0-no-such-segment"), SystemError);
  const std::string name = "/sf-" + std::to_string(getpid()) + "-small";
  const Fd small(shm_open(name.c_str(), O_CREAT | O_RDWR, 0600));
  REQUIRE(small.valid());
  REQUIRE(ftruncate(small.get(), 100) == 0);
  CHECK_THROWS_AS(attach_segment(name), SystemError);
  unlink_segment(name);
  CHECK_THROWS_AS(Mapping(-1), SystemError);
}

// A sweep removes what a killed maker left behind, and nothing of a maker who lives.
TEST_CASE("shm segment: sweep") {
  int name_pipe[2];
  REQUIRE(pipe(name_pipe) == 0);
  const pid_t child = test::fork_process();
  if (child == 0) {
    const NamedSegment made = make_segment();
    const ssize_t written = write(name_pipe[1], made.name.data(), made.name.size());
    _exit(written > 0 ? 0 : 1);
  }
  char name[64] = {};
  REQUIRE(read(name_pipe[0], name, sizeof name - 1) > 0);
  ::close(name_pipe[0]);
  ::close(name_pipe[1]);
  const NamedSegment own = make_segment();
  REQUIRE(exists(name));
  REQUIRE(waitpid(child, nullptr, 0) == child);
#ifdef __linux__
  const std::vector<std::string> removed = sweep_segments();
  CHECK(std::count(removed.begin(), removed.end(), name) == 1);
  CHECK_FALSE(exists(name));
#endif
  CHECK(exists(own.name));
  unlink_segment(own.name);
  unlink_segment(name);
}

namespace {

SF_REVEAL(PagesFrom, Mapping, Fd, fd_)

std::uint64_t bytes_taken(int fd) {
  struct stat status{};
  REQUIRE(fstat(fd, &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

}  // namespace

// Few ranks: all pages are there from the beginning. Many: those of the heads; a long frame takes
// what it needs of its own lane, once.
TEST_CASE("shm segment: pages are taken at once, or by the frames that need them") {
#ifdef __linux__
  const NamedSegment few = make_segment(kRanksWithAllPages);
  unlink_segment(few.name);
  CHECK(bytes_taken(few.fd.get()) >= sizeof(Segment));

  const NamedSegment many = make_segment(kRanksWithAllPages + 1);
  unlink_segment(many.name);
  const std::uint64_t heads = bytes_taken(many.fd.get());
  CHECK(heads < 64 * 1024);
  WirePair wires = shm_wires(std::make_shared<Mapping>(many.fd.get()));
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t i = 1; i <= kSlots; ++i) {
      const auto sent = pattern(kFrameBytes, round + i);
      REQUIRE(wires.a->send(tag_of(i), sent.data(), sent.size()) == Turn::kDone);
    }
    for (std::uint32_t i = 1; i <= kSlots; ++i) {
      std::vector<std::byte> got(kFrameBytes);
      REQUIRE(wires.b->receive(tag_of(i), got.data(), got.size()) == Turn::kDone);
      CHECK(got == pattern(kFrameBytes, round + i));
    }
    CHECK(bytes_taken(many.fd.get()) == heads + kSlots * kFrameBytes);
  }
#endif
}

// Where there are no pages for a frame, it is not sent, and the wire says why.
TEST_CASE("shm wire: no memory for a frame") {
#ifdef __linux__
  const NamedSegment made = make_segment(kRanksWithAllPages + 1);
  unlink_segment(made.name);
  const auto mapping = std::make_shared<Mapping>(made.fd.get());
  WirePair wires = shm_wires(mapping);
  const auto sent = pattern(kFrameBytes, 1);
  mapping.get()->*reveal(PagesFrom{}) = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(wires.a->send(tag_of(1), sent.data(), sent.size()) == Turn::kBroken);
  CHECK(wires.a->trouble() == "shared memory of 131072 bytes: EBADF (Bad file descriptor)");
  Tag tag;
  std::size_t bytes = 0;
  CHECK(wires.b->peek(&tag, &bytes) == Turn::kNotYet);
#endif
}

namespace {

SF_REVEAL(Sent, ShmWire, std::uint64_t, sent_)
SF_REVEAL(FreedSeen, ShmWire, std::uint64_t, freed_seen_)
SF_REVEAL(Received, ShmWire, std::uint64_t, received_)

}  // namespace

// Frame numbers go round at 2^32 without a stumble, with an empty window and with a full one.
TEST_CASE("shm wire: the 2^32th frame") {
  const auto mapping = shared_mapping();
  WirePair wires = shm_wires(mapping);
  auto& sender = dynamic_cast<ShmWire&>(*wires.a);
  auto& receiver = dynamic_cast<ShmWire&>(*wires.b);
  constexpr std::uint32_t kStart = ~std::uint32_t{0} - 20;
  Lane& lane = mapping->segment().lanes[0];
  sender.*reveal(Sent{}) = kStart;
  sender.*reveal(FreedSeen{}) = kStart;
  receiver.*reveal(Received{}) = kStart;
  lane.freed = kStart;
  for (std::uint32_t number = kStart - kSlots + 1; number <= kStart; ++number) {
    lane.heads[(number - 1) % kSlots].ready = number;
  }
  const std::vector<std::byte> data = pattern(100, 3);
  std::byte memory[100];
  std::uint32_t sent = 0;
  for (std::uint32_t n = 0; n < 60; ++n) {
    CAPTURE(n);
    if (n < 10) CHECK(receiver.receive(tag_of(n), memory, 100) == Turn::kNotYet);
    while (sent < 60 && sender.send(tag_of(sent), data.data(), 100) == Turn::kDone) {
      ++sent;
      if (n < 10) break;
    }
    REQUIRE(sent - n <= kSlots);
    if (n >= 10) REQUIRE(sent == std::min<std::uint32_t>(60, n + kSlots));
    std::fill_n(memory, 100, std::byte{0});
    REQUIRE(receiver.receive(tag_of(n), memory, 100) == Turn::kDone);
    CHECK(std::equal(data.begin(), data.end(), memory));
  }
  CHECK(receiver.receive(tag_of(60), memory, 100) == Turn::kNotYet);
}

// The window is kFramesInFlight and no more, so that a slow reader holds up its writer.
TEST_CASE("shm wire: the window") {
  WirePair wires = shm_wires(shared_mapping());
  for (std::uint32_t n = 0; n < kSlots; ++n) {
    REQUIRE(wires.a->send(tag_of(n), "x", 1) == Turn::kDone);
    CHECK_FALSE(wires.a->sending());
  }
  CHECK(wires.a->send(tag_of(kSlots), "x", 1) == Turn::kNotYet);
}

// Nobody rings where nobody sleeps, and a sleeper is rung once, however much is sent.
TEST_CASE("shm wire: one ring per sleep") {
  WirePair wires = shm_wires(shared_mapping());
  const auto rings = [&] {
    pollfd ready = {wires.b->poll_fd(), POLLIN, 0};
    return poll(&ready, 1, 0) == 1;
  };
  REQUIRE(wires.a->send(tag_of(0), "x", 1) == Turn::kDone);
  CHECK_FALSE(rings());
  wires.b->asleep(Half::kReceiving);
  REQUIRE(wires.a->send(tag_of(1), "x", 1) == Turn::kDone);
  CHECK(rings());
  CHECK_FALSE(wires.b->answer_bell(Half::kReceiving));
  CHECK_FALSE(rings());
  REQUIRE(wires.a->send(tag_of(2), "x", 1) == Turn::kDone);
  CHECK_FALSE(rings());
}

// Whoever hears a ring that was for the other half says so, and one that was for both, too.
TEST_CASE("shm wire: rings for the other half") {
  for (const bool for_both : {false, true}) {
    CAPTURE(for_both);
    WirePair wires = shm_wires(shared_mapping());
    for (std::uint32_t n = 0; n < kSlots; ++n) {
      REQUIRE(wires.b->send(tag_of(n), "x", 1) == Turn::kDone);
    }
    wires.b->asleep(Half::kSending);
    if (for_both) wires.b->asleep(Half::kReceiving);
    std::byte memory{};
    REQUIRE(wires.a->receive(tag_of(0), &memory, 1) == Turn::kDone);
    if (for_both) REQUIRE(wires.a->send(tag_of(0), "x", 1) == Turn::kDone);
    CHECK(wires.b->answer_bell(Half::kReceiving));
    CHECK_FALSE(wires.b->answer_bell(Half::kReceiving));
  }
}

// The end that one half has heard is known to the other, which can't hear it any more.
TEST_CASE("shm wire: one half tells the other of the end") {
  WirePair wires = shm_wires(shared_mapping());
  for (std::uint32_t n = 0; n < kSlots; ++n) {
    REQUIRE(wires.a->send(tag_of(n), "x", 1) == Turn::kDone);
  }
  wires.b.reset();
  CHECK(wires.a->answer_bell(Half::kReceiving));
  CHECK(wires.a->send(tag_of(0), "x", 1) == Turn::kBroken);
  std::byte memory{};
  CHECK(wires.a->receive(tag_of(0), &memory, 1) == Turn::kBroken);
  CHECK(wires.a->trouble() == "its end of the shared-memory doorbell closed without goodbye");
}

// A size in shared memory that is a lie is a mismatch, never a read beyond the frame.
TEST_CASE("shm wire: a damaged size") {
  const auto mapping = shared_mapping();
  WirePair wires = shm_wires(mapping);
  REQUIRE(wires.a->send(tag_of(0), "abc", 3) == Turn::kDone);
  mapping->segment().lanes[0].heads[0].bytes = ~std::uint32_t{0};
  std::byte memory[3];
  CHECK(wires.b->receive(tag_of(0), memory, 3) == Turn::kMismatch);
  CHECK(wires.b->got_bytes() == ~std::uint32_t{0});
}

// What a rank's watch stores at the group's end its peer sees, in each direction and no other.
TEST_CASE("shm wire: the group's end is seen by the peer") {
  WirePair pair = shm_wires(shared_mapping());
  REQUIRE(pair.a->own_end() != nullptr);
  CHECK(pair.a->peers_end()->load() == 0);
  CHECK(pair.b->peers_end()->load() == 0);
  pair.a->own_end()->store(1);
  CHECK(pair.b->peers_end()->load() == 1);
  CHECK(pair.a->peers_end()->load() == 0);
  pair.b->own_end()->store(1);
  CHECK(pair.a->peers_end()->load() == 1);
}

}  // namespace standfast
