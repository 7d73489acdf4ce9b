// What only the TCP fabric can get wrong: streams that are cut anywhere, garbage, ends.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "tests/core/wires.h"

namespace standfast {
namespace {

using test::eventually;
using test::pattern;
using test::socket_pair;
using test::tcp_pair;

constexpr std::size_t kHeadBytes = 32;
constexpr std::size_t kAtKind = 4;
constexpr std::size_t kAtBytes = 24;

Tag tag_of(std::uint32_t seq) {
  Tag tag;
  tag.seq = seq;
  tag.kind = OpKind::kSend;
  return tag;
}

// A wire whose other end is a bare socket.
struct BareEnd {
  BareEnd() : BareEnd(socket_pair()) {}
  explicit BareEnd(std::pair<Fd, Fd> sockets)
      : wire(1, "tcp", std::move(sockets.first)), bare(std::move(sockets.second)) {}

  void write(const std::byte* bytes, std::size_t count) {
    std::size_t done = 0;
    REQUIRE(eventually([&] {
      const Transfer transfer = send_some(bare.get(), bytes + done, count - done);
      if (transfer.kind == Transfer::Kind::kMoved) done += transfer.bytes;
      return done == count;
    }));
  }
  void write(const std::vector<std::byte>& bytes) { write(bytes.data(), bytes.size()); }
  std::vector<std::byte> read_all() {
    std::vector<std::byte> all;
    std::byte buffer[4096];
    for (;;) {
      const Transfer transfer = receive_some(bare.get(), buffer, sizeof buffer);
      if (transfer.kind != Transfer::Kind::kMoved) return all;
      all.insert(all.end(), buffer, buffer + transfer.bytes);
    }
  }

  TcpWire wire;
  Fd bare;
};

// What a wire puts on the stream for one frame.
std::vector<std::byte> bytes_of(const Tag& tag, const std::vector<std::byte>& data) {
  BareEnd end;
  REQUIRE(end.wire.send(tag, data.data(), data.size()) == Turn::kDone);
  REQUIRE(end.wire.flush() == Turn::kDone);
  std::vector<std::byte> bytes = end.read_all();
  REQUIRE(bytes.size() == kHeadBytes + data.size());
  return bytes;
}

// Until the socket's end was noticed: a loopback connection takes a moment.
template <class Attempt>
Turn settled(Attempt attempt) {
  Turn turn = Turn::kNotYet;
  (void)eventually([&] {
    turn = attempt();
    return turn != Turn::kNotYet;
  });
  return turn;
}

}  // namespace

// Wherever a stream is cut into reads, each frame comes out whole, and only when its last byte is
// there: received, viewed or peeked at.
TEST_CASE("tcp wire: cut at every byte") {
  const std::vector<std::byte> data[2] = {pattern(40, 1), pattern(7, 2)};
  std::vector<std::byte> stream = bytes_of(tag_of(1), data[0]);
  const std::size_t first_bytes = stream.size();
  const std::vector<std::byte> second = bytes_of(tag_of(2), data[1]);
  stream.insert(stream.end(), second.begin(), second.end());
  for (std::size_t cut = 1; cut < stream.size(); ++cut) {
    CAPTURE(cut);
    BareEnd end;
    std::byte memory[40];
    end.write(stream.data(), cut);
    Tag tag;
    std::size_t bytes = 0;
    CHECK((end.wire.peek(&tag, &bytes) == Turn::kDone) == (cut >= kHeadBytes));
    const std::byte* seen = nullptr;
    const bool by_view = cut % 2 == 0;
    const auto first = [&] {
      return by_view ? end.wire.view(tag_of(1), 40, &seen)
                     : end.wire.receive(tag_of(1), memory, 40);
    };
    const Turn early = first();
    CHECK((early == Turn::kDone) == (cut >= first_bytes));
    end.write(stream.data() + cut, stream.size() - cut);
    if (early != Turn::kDone) REQUIRE(first() == Turn::kDone);
    CHECK(std::equal(data[0].begin(), data[0].end(), by_view ? seen : memory));
    if (by_view) CHECK(end.wire.release() == Turn::kDone);
    REQUIRE(end.wire.receive(tag_of(2), memory, 7) == Turn::kDone);
    CHECK(std::equal(data[1].begin(), data[1].end(), memory));
  }
}

// Many small frames that come in one read are all there, though nothing more arrives.
TEST_CASE("tcp wire: frames that come together") {
  BareEnd source;
  BareEnd end;
  std::vector<std::byte> stream;
  constexpr std::uint32_t kFrames = 2000;
  for (std::uint32_t n = 0; n < kFrames; ++n) {
    const std::vector<std::byte> data = pattern(n % 50, n);
    REQUIRE(source.wire.send(tag_of(n), data.data(), data.size()) == Turn::kDone);
    const std::vector<std::byte> frame = source.read_all();
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  std::size_t written = 0;
  for (std::uint32_t n = 0; n < kFrames; ++n) {
    CAPTURE(n);
    std::byte memory[50];
    const Turn turn = settled([&] {
      const Transfer more =
          send_some(end.bare.get(), stream.data() + written, stream.size() - written);
      if (more.kind == Transfer::Kind::kMoved) written += more.bytes;
      return end.wire.receive(tag_of(n), memory, n % 50);
    });
    REQUIRE(turn == Turn::kDone);
    const std::vector<std::byte> expected = pattern(n % 50, n);
    CHECK(std::equal(expected.begin(), expected.end(), memory));
  }
}

// However little a slow reader takes, the stream it gets is the frames in their order.
TEST_CASE("tcp wire: a slow reader") {
  BareEnd end(tcp_pair(1));
  std::vector<std::byte> expected;
  std::vector<std::vector<std::byte>> frames;
  for (std::uint32_t n = 0; n < 30; ++n) {
    frames.push_back(pattern(n % 3 == 0 ? 0 : n * 97, n));
    const std::vector<std::byte> bytes = bytes_of(tag_of(n), frames.back());
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> got;
  std::uint32_t sent = 0;
  std::byte buffer[1000];
  REQUIRE(eventually([&] {
    if (sent < frames.size()) {
      const std::vector<std::byte>& next = frames[sent];
      const Turn turn = end.wire.send(tag_of(sent), next.data(), next.size());
      REQUIRE(turn != Turn::kBroken);
      if (turn == Turn::kDone) ++sent;
    }
    const Transfer transfer = receive_some(end.bare.get(), buffer, 1 + got.size() % 997);
    if (transfer.kind == Transfer::Kind::kMoved) {
      got.insert(got.end(), buffer, buffer + transfer.bytes);
    } else {
      (void)end.wire.flush();
    }
    return got.size() >= expected.size();
  }));
  CHECK(got == expected);
  CHECK(end.wire.flush() == Turn::kDone);
}

// A full frame waits for company, at most until flush(); whatever follows takes it along.
TEST_CASE("tcp wire: full frames go together") {
  const std::vector<std::byte> full = pattern(kFrameBytes, 1);
  const std::size_t whole = kHeadBytes + kFrameBytes;
  enum class Then { kFull, kShort, kFlush };
  for (const Then then : {Then::kFull, Then::kShort, Then::kFlush}) {
    CAPTURE(static_cast<int>(then));
    BareEnd end(tcp_pair());
    REQUIRE(end.wire.send(tag_of(1), full.data(), full.size()) == Turn::kDone);
    CHECK(end.wire.sending());
    CHECK(end.read_all().empty());
    if (then == Then::kFull) (void)end.wire.send(tag_of(2), full.data(), full.size());
    if (then == Then::kShort) (void)end.wire.send(tag_of(2), full.data(), 5);
    const std::size_t expected = whole + (then == Then::kFull    ? whole
                                          : then == Then::kShort ? kHeadBytes + 5
                                                                 : 0);
    std::vector<std::byte> got;
    CHECK(eventually([&] {
      if (then == Then::kFlush || !got.empty()) (void)end.wire.flush();
      const std::vector<std::byte> more = end.read_all();
      got.insert(got.end(), more.begin(), more.end());
      return got.size() >= expected;
    }));
    CHECK(got.size() == expected);
    CHECK(std::equal(full.begin(), full.end(), got.begin() + kHeadBytes));
  }
}

// A stream that is none of ours breaks the wire with a text, and is never taken for a goodbye.
TEST_CASE("tcp wire: garbage") {
  const std::vector<std::byte> good = bytes_of(tag_of(1), pattern(4, 1));
  std::vector<std::vector<std::byte>> streams;
  for (const int filler : {0x00, 0xff, 0x41}) {
    streams.emplace_back(100, static_cast<std::byte>(filler));
  }
  for (std::size_t at = kHeadBytes - 4; at < kHeadBytes; ++at) {
    streams.push_back(good);
    streams.back()[at] ^= std::byte{1};
  }
  streams.push_back(good);
  store(streams.back().data() + kAtBytes, static_cast<std::uint32_t>(kFrameBytes + 1));
  streams.push_back(good);
  store(streams.back().data() + kAtBytes, ~std::uint32_t{0});
  streams.push_back(streams.back());
  streams.back()[kAtKind] = std::byte{255};
  for (const auto& stream : streams) {
    BareEnd end;
    end.write(stream);
    std::byte memory[4];
    const std::byte* seen = nullptr;
    Tag tag;
    std::size_t bytes = 0;
    for (int i = 0; i < 2; ++i) {
      CHECK(end.wire.receive(tag_of(1), memory, 4) == Turn::kBroken);
      CHECK(end.wire.view(tag_of(1), 4, &seen) == Turn::kBroken);
      CHECK(end.wire.peek(&tag, &bytes) == Turn::kBroken);
    }
    CHECK(end.wire.trouble() == "a frame that is none of ours");
  }
}

// A frame that is cut short by the end is never delivered, and nor is a cut goodbye believed.
TEST_CASE("tcp wire: an end within a frame") {
  const std::vector<std::byte> data = pattern(40, 1);
  Tag goodbye;
  goodbye.kind = OpKind::kGoodbye;
  for (const bool is_goodbye : {false, true}) {
    const std::vector<std::byte> stream =
        is_goodbye ? bytes_of(goodbye, {}) : bytes_of(tag_of(1), data);
    for (std::size_t cut = 0; cut < stream.size(); ++cut) {
      CAPTURE(cut);
      BareEnd end;
      end.write(stream.data(), cut);
      end.bare.reset();
      std::byte memory[40];
      CHECK(end.wire.receive(tag_of(1), memory, 40) == Turn::kBroken);
      CHECK(end.wire.receive(tag_of(1), memory, 40) == Turn::kBroken);
      CHECK(end.wire.trouble() == "its end of the data connection closed without goodbye");
    }
  }
}

// The end is the end even if errno says EAGAIN from something before.
TEST_CASE("tcp wire: the end with a stale errno") {
  BareEnd end;
  end.bare.reset();
  std::byte memory{};
  errno = EAGAIN;
  CHECK(end.wire.receive(tag_of(1), &memory, 1) == Turn::kBroken);
}

// A reset is told by its name.
TEST_CASE("tcp wire: a reset") {
  BareEnd end(tcp_pair());
  REQUIRE(end.wire.send(tag_of(1), "x", 1) == Turn::kDone);
  REQUIRE(end.wire.flush() == Turn::kDone);
  const linger at_once = {1, 0};
  REQUIRE(setsockopt(end.bare.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  end.bare.reset();
  std::byte memory{};
  CHECK(settled([&] { return end.wire.receive(tag_of(1), &memory, 1); }) == Turn::kBroken);
  CHECK(end.wire.trouble() == "recv: " + errno_text(ECONNRESET));
}

namespace {
volatile std::sig_atomic_t pipe_signals = 0;
}  // namespace

// Sending to who is gone breaks the wire; it never raises SIGPIPE.
TEST_CASE("tcp wire: no SIGPIPE") {
  struct sigaction ours{};
  struct sigaction before{};
  ours.sa_handler = [](int) { pipe_signals = pipe_signals + 1; };
  sigaction(SIGPIPE, &ours, &before);
  for (const bool is_tcp : {false, true}) {
    CAPTURE(is_tcp);
    BareEnd end(is_tcp ? tcp_pair() : socket_pair());
    end.bare.reset();
    CHECK(eventually([&] { return end.wire.send(tag_of(1), "x", 1) == Turn::kBroken; }));
    CHECK(end.wire.trouble().rfind("send: E", 0) == 0);
    end.wire.say_goodbye();
    end.wire.shut_down();
    CHECK(end.wire.flush() == Turn::kBroken);
  }
  sigaction(SIGPIPE, &before, nullptr);
  CHECK(pipe_signals == 0);
}

// A goodbye is only said between frames: in the middle of one it would be taken for its payload.
TEST_CASE("tcp wire: no goodbye within a frame") {
  BareEnd end(tcp_pair(1));
  const std::vector<std::byte> data = pattern(kFrameBytes, 1);
  while (end.wire.send(tag_of(1), data.data(), data.size()) == Turn::kDone) {
  }
  REQUIRE(end.wire.sending());
  end.wire.say_goodbye();
  end.wire.shut_down();
  std::vector<std::byte> got;
  std::byte buffer[4096];
  REQUIRE(eventually([&] {
    const Transfer transfer = receive_some(end.bare.get(), buffer, sizeof buffer);
    if (transfer.kind == Transfer::Kind::kMoved) {
      got.insert(got.end(), buffer, buffer + transfer.bytes);
    }
    return transfer.kind == Transfer::Kind::kEnd || transfer.kind == Transfer::Kind::kError;
  }));
  BareEnd replay;
  std::vector<std::byte> memory(kFrameBytes);
  Turn turn = Turn::kDone;
  std::size_t at = 0;
  while (turn == Turn::kDone || turn == Turn::kNotYet) {
    const std::size_t step = std::min<std::size_t>(got.size() - at, 1000);
    if (step == 0) replay.bare.reset();
    if (step > 0) replay.write(got.data() + at, step);
    at += step;
    turn = replay.wire.receive(tag_of(1), memory.data(), kFrameBytes);
  }
  CHECK(turn == Turn::kBroken);
}

namespace {

SF_REVEAL(Accepted, TcpWire, std::uint32_t, accepted_)
SF_REVEAL(Sent, TcpWire, std::uint32_t, sent_)

}  // namespace

// Frame numbers go round at 2^32 without a stumble.
TEST_CASE("tcp wire: the 2^32th frame") {
  test::WirePair wires = test::TightTcp::make();
  auto& sender = dynamic_cast<TcpWire&>(*wires.a);
  sender.*reveal(Accepted{}) = ~std::uint32_t{0} - 20;
  sender.*reveal(Sent{}) = ~std::uint32_t{0} - 20;
  const std::vector<std::byte> data = pattern(5000, 3);
  std::vector<std::byte> memory(5000);
  std::uint32_t sent = 0;
  for (std::uint32_t n = 0; n < 60; ++n) {
    CAPTURE(n);
    while (sent < 60 && sender.send(tag_of(sent), data.data(), 5000) == Turn::kDone) ++sent;
    REQUIRE(sent >= std::min<std::uint32_t>(60, n + kFramesInFlight));
    std::fill(memory.begin(), memory.end(), std::byte{0});
    REQUIRE(test::insist(wires, *wires.b, Half::kReceiving, [&] {
              return wires.b->receive(tag_of(n), memory.data(), 5000);
            }) == Turn::kDone);
    CHECK(memory == data);
  }
}

}  // namespace standfast
