// A TCP connection between two ranks. Frames are sent from and received into the caller's memory.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "core/base/fd.h"
#include "core/fabric/fabric.h"

namespace standfast {

class TcpWire final : public Wire {
 public:
  TcpWire(int peer, std::string link, Fd socket);

  Turn send(const Tag& tag, const void* data, std::size_t bytes) override;
  Turn flush() override;
  void say_goodbye() override;

  Turn receive(const Tag& tag, void* to, std::size_t bytes) override;
  Turn view(const Tag& tag, std::size_t bytes, const std::byte** data) override;
  Turn release() override;
  Turn peek(Tag* tag, std::size_t* bytes) override;

  int data_socket() const override { return socket_.get(); }
  int poll_fd() const override { return socket_.get(); }
  bool wakes_by_reading(Half half) const override { return half == Half::kReceiving; }
  void asleep(Half half) override;
  void awake(Half) override {}
  bool answer_bell(Half) override { return false; }

  std::string trouble() const override;
  void shut_down() override;
  void abandon() override { socket_.reset(); }

 private:
  struct FrameHead {
    Tag tag;
    std::uint32_t bytes;
    std::uint32_t magic;
  };
  struct Outgoing {
    FrameHead head;
    const std::byte* data;
    std::size_t moved;  // of head and data together
  };

  Turn read_head();
  Turn expect(const Tag& tag, std::size_t bytes);
  Turn read_payload(std::byte* to);
  Turn fill(std::byte* to, std::size_t bytes);
  void advance(std::size_t moved);
  Turn received_end(const Transfer& transfer);
  bool is_bad() const { return bad_frame_.load(std::memory_order_relaxed); }

  Fd socket_;

  // The sending half. The queue holds [sent_, accepted_).
  static constexpr std::uint32_t kQueue = kFramesInFlight;
  // A full frame is part of something longer, and waits for the next one or for flush(): so many
  // go in one system call. With more of them, two ranks that exchange take turns instead of
  // overlapping (bench/tcp.cpp: 4 make a reduce_scatter of 16 MiB a third slower).
  static constexpr std::uint32_t kTogether = 2;
  std::array<Outgoing, kQueue> queue_{};
  std::uint32_t accepted_ = 0;
  std::uint32_t sent_ = 0;
  bool taker_gone_ = false;  // the peer ended its direction; seen when this half goes to sleep

  // The receiving half. `ahead_` holds what came with a frame's end: [ahead_begin_, ahead_end_).
  static constexpr std::size_t kAheadBytes = 16 * 1024;
  std::unique_ptr<std::byte[]> ahead_;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t ahead_begin_ = 0;
  std::size_t ahead_end_ = 0;
  FrameHead head_{};
  bool have_head_ = false;
  std::size_t payload_done_ = 0;
  bool left_ = false;
  bool ended_ = false;

  // What trouble() tells, in the thread of either half, whichever half had it. Relaxed: they carry
  // no data.
  std::atomic<int> send_error_{0};
  std::atomic<int> receive_error_{0};
  std::atomic<bool> bad_frame_{false};
};

}  // namespace standfast
