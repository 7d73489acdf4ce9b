// Watches in one process, and bare ends of control links: for the tests of the watch and of what it
// does to processes.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/control/loop.h"
#include "tests/core/support.h"

namespace standfast::test {

inline constexpr std::uint32_t kGeneration = 3;

// A rank that is a control link and nothing else: the test speaks for it.
class BareRank {
 public:
  explicit BareRank(Fd link) : link_(std::move(link)) {}

  void say(const std::vector<std::byte>& bytes) {
    std::size_t done = 0;
    REQUIRE(eventually([&] {
      const Transfer transfer = send_some(link_.get(), bytes.data() + done, bytes.size() - done);
      if (transfer.kind == Transfer::Kind::kMoved) done += transfer.bytes;
      return done == bytes.size();
    }));
  }
  void say(FrameType type, VerdictKind kind, int rank, bool suspicion = false) {
    Frame frame;
    frame.type = type;
    frame.generation = kGeneration;
    frame.suspicion = suspicion;
    frame.verdict.kind = kind;
    frame.verdict.rank = rank;
    frame.verdict.cause = "said by a test";
    say(encode(frame));
  }
  // The next frame; nothing if the link ended first.
  std::optional<Frame> hear() {
    std::optional<Frame> frame;
    (void)eventually([&] { return (frame = reader_.next()).has_value() || !read_more(); });
    return frame;
  }
  bool hears_the_end() {
    return eventually([&] { return !read_more(); });
  }
  void close() { link_.reset(); }
  const Fd& link() const { return link_; }

 private:
  // False once the link has ended and all was read.
  bool read_more() {
    std::byte buffer[4096];
    const Transfer transfer = receive_some(link_.get(), buffer, sizeof buffer);
    if (transfer.kind == Transfer::Kind::kMoved) reader_.append(buffer, transfer.bytes);
    return transfer.kind == Transfer::Kind::kMoved || transfer.kind == Transfer::Kind::kWouldBlock;
  }

  Fd link_;
  FrameReader reader_;
};

inline WatchConfig watch_config(int rank, int size) {
  WatchConfig config;
  config.shape = {rank, size, kGeneration};
  return config;
}

// A watch with its abort word, of rank `rank`; bare ranks are on the other ends of its links.
struct WatchedRank {
  AbortWord abort;
  Bell bell;
  std::unique_ptr<Watch> watch;

  void start(WatchConfig config) {
    config.bells = {&bell};
    watch = std::make_unique<Watch>(std::move(config), abort);
  }
  // The verdict that comes, or null if none does.
  const Verdict* verdict() {
    (void)eventually([&] { return abort.verdict() != nullptr; });
    return abort.verdict();
  }
};

}  // namespace standfast::test
