// A wire over RDMA: frames in messages over one to four cables. Beside them lies the pair's TCP
// connection, which tells of the peer's goodbye and of its end; RDMA tells of neither.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/link.h"

namespace standfast {

class VerbsWire final : public Wire {
 public:
  VerbsWire(int peer, std::string link_text, Fd socket, std::unique_ptr<verbs::Link> link);

  Turn send(const Tag& tag, const void* data, std::size_t bytes) override;
  Turn flush() override;
  void say_goodbye() override;

  Turn receive(const Tag& tag, void* to, std::size_t bytes) override;
  Turn view(const Tag& tag, std::size_t bytes, const std::byte** data) override;
  Turn release() override;
  Turn peek(Tag* tag, std::size_t* bytes) override;

  int poll_fd() const override { return socket_.get(); }
  bool wakes_by_reading(Half) const override { return true; }
  bool must_be_polled() const override { return true; }
  std::string ailment() override;
  void asleep(Half half) override;
  void awake(Half) override {}
  bool answer_bell(Half half) override;

  std::string trouble() const override;
  void shut_down() override;
  void abandon() override { socket_.reset(); }

 private:
  class Hold;
  struct Outgoing {
    Tag tag;
    const std::byte* data;
    std::uint32_t bytes;
    std::uint32_t moved;
    bool begun;
  };
  // What goes over the socket, once: how many messages there were.
  struct Goodbye {
    std::uint32_t magic;
    std::uint32_t messages;
  };

  Turn advance();
  Turn no_room() const;
  Turn idle() const;
  Turn next_message(const verbs::Arrival** arrival, const verbs::Landing* landing = nullptr);
  Turn expect(const Tag& tag, std::size_t bytes, std::byte* landing);
  Turn collect(std::byte* to);
  void note();
  void read_socket();
  void check_ports();
  bool has_left() const { return goodbye_bytes_ == sizeof goodbye_; }

  Fd socket_;
  std::unique_ptr<verbs::Link> link_;
  // Both halves use the link, each in its own thread, for some microseconds at a time. Guards the
  // link and everything below. Acquire and release: what one half has written, the other sees.
  mutable std::atomic_flag held_ = ATOMIC_FLAG_INIT;

  // The sending half. The queue holds [sent_, accepted_).
  static constexpr std::uint32_t kQueue = kFramesInFlight;
  std::array<Outgoing, kQueue> queue_{};
  std::uint32_t accepted_ = 0;
  std::uint32_t sent_ = 0;

  // The receiving half. A frame of several messages is put together in `staging_` to be viewed.
  std::unique_ptr<std::byte[]> staging_;
  Tag frame_tag_;
  std::uint32_t frame_bytes_ = 0;
  std::uint32_t frame_done_ = 0;
  bool have_frame_ = false;
  bool is_in_place_ = false;    // it was viewed where it lies
  bool is_disorderly_ = false;  // a message that continues no frame
  std::uint64_t noted_ = 0;

  // The socket.
  Goodbye goodbye_{};
  std::size_t goodbye_bytes_ = 0;
  bool ended_ = false;
  Nanos ended_ns_ = 0;
  int socket_error_ = 0;
  Nanos ports_checked_ns_ = 0;
};

}  // namespace standfast
