#include "core/fabric/tcp/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/fabric/tcp/nearby.h"

namespace standfast {
namespace {

constexpr std::uint32_t kMagic = 0x31664653;  // "SFf1": a stream out of step is seen at once

#ifdef POLLRDHUP
constexpr short kPeerEnded = POLLRDHUP;
#else
constexpr short kPeerEnded = POLLHUP;  // macOS: told to who asks for POLLIN
#endif

}  // namespace

TcpWire::TcpWire(int peer, std::string link, Fd socket)
    : Wire(peer, std::move(link)),
      socket_(std::move(socket)),
      ahead_(std::make_unique<std::byte[]>(kAheadBytes)),
      staging_(std::make_unique<std::byte[]>(kFrameBytes)) {
  ease_nearby(socket_.get());
}

Turn TcpWire::send(const Tag& tag, const void* data, std::size_t bytes) {
  SF_CHECK(bytes <= kFrameBytes);
  if (accepted_ - sent_ == kQueue) {
    const Turn turn = flush();
    if (turn == Turn::kBroken) return turn;
    if (accepted_ - sent_ == kQueue) return Turn::kNotYet;
  }
  queue_[accepted_++ % kQueue] = {
      {tag, static_cast<std::uint32_t>(bytes), kMagic}, as_bytes(data), 0};
  sending_ = true;
  const bool is_full = bytes == kFrameBytes;
  if (is_full && accepted_ - sent_ < kTogether) return Turn::kDone;
  return flush() == Turn::kBroken ? Turn::kBroken : Turn::kDone;
}

Turn TcpWire::flush() {
  while (sent_ != accepted_) {
    iovec parts[2 * kQueue];
    int count = 0;
    for (std::uint32_t at = sent_; at != accepted_; ++at) {
      Outgoing& frame = queue_[at % kQueue];
      const std::size_t head_left = sizeof frame.head - std::min(frame.moved, sizeof frame.head);
      const std::size_t data_moved = frame.moved - (sizeof frame.head - head_left);
      if (head_left > 0) {
        parts[count++] = {as_bytes(&frame.head) + (sizeof frame.head - head_left), head_left};
      }
      if (frame.head.bytes > data_moved) {
        parts[count++] = {const_cast<std::byte*>(frame.data) + data_moved,
                          frame.head.bytes - data_moved};
      }
    }
    const Transfer transfer = send_some(socket_.get(), parts, count);
    if (transfer.kind == Transfer::Kind::kWouldBlock) {
      return taker_gone_ ? Turn::kBroken : Turn::kNotYet;
    }
    if (transfer.kind != Transfer::Kind::kMoved) {
      send_error_.store(transfer.code, std::memory_order_relaxed);
      return Turn::kBroken;
    }
    advance(transfer.bytes);
  }
  sending_ = false;
  return Turn::kDone;
}

void TcpWire::advance(std::size_t moved) {
  while (moved > 0) {
    Outgoing& frame = queue_[sent_ % kQueue];
    const std::size_t step = std::min(moved, sizeof frame.head + frame.head.bytes - frame.moved);
    frame.moved += step;
    moved -= step;
    if (frame.moved == sizeof frame.head + frame.head.bytes) ++sent_;
  }
}

// A peer that ends its direction takes no more of ours, either. Its full buffers would never tell.
void TcpWire::asleep(Half half) {
  if (half != Half::kSending || taker_gone_) return;
  pollfd ready = {socket_.get(), POLLIN | kPeerEnded, 0};
  taker_gone_ = poll(&ready, 1, 0) > 0 && (ready.revents & kPeerEnded) != 0;
}

void TcpWire::say_goodbye() {
  if (sending_) return;  // a frame was cut short: the stream can't carry a goodbye any more
  Tag tag;
  tag.kind = OpKind::kGoodbye;
  (void)send(tag, nullptr, 0);
  ::shutdown(socket_.get(), SHUT_WR);
}

Turn TcpWire::received_end(const Transfer& transfer) {
  if (transfer.kind == Transfer::Kind::kWouldBlock) return Turn::kNotYet;
  ended_ = true;
  receive_error_.store(transfer.code, std::memory_order_relaxed);
  return Turn::kBroken;
}

// Reads at least something to `to`, whatever is beyond it to ahead_. ahead_ must be empty.
Turn TcpWire::fill(std::byte* to, std::size_t bytes) {
  // Behind a long payload only the next head is wanted: what follows goes straight to its place.
  const std::size_t beyond = bytes < kAheadBytes ? kAheadBytes : sizeof(FrameHead);
  iovec parts[2] = {{to, bytes}, {ahead_.get(), beyond}};
  const Transfer transfer = receive_some(socket_.get(), parts, 2);
  if (transfer.kind != Transfer::Kind::kMoved) return received_end(transfer);
  note_received();
  payload_done_ += std::min(transfer.bytes, bytes);
  ahead_begin_ = 0;
  ahead_end_ = transfer.bytes - std::min(transfer.bytes, bytes);
  return Turn::kDone;
}

Turn TcpWire::read_head() {
  if (have_head_) return Turn::kDone;
  if (left_) return Turn::kLeft;
  if (ended_ || is_bad()) return Turn::kBroken;
  while (ahead_end_ - ahead_begin_ < sizeof head_) {
    std::copy(&ahead_[ahead_begin_], &ahead_[ahead_end_], &ahead_[0]);
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
    const Transfer transfer =
        receive_some(socket_.get(), &ahead_[ahead_end_], kAheadBytes - ahead_end_);
    if (transfer.kind != Transfer::Kind::kMoved) return received_end(transfer);
    note_received();
    ahead_end_ += transfer.bytes;
  }
  copy_bytes(&head_, &ahead_[ahead_begin_], sizeof head_);
  ahead_begin_ += sizeof head_;
  const bool is_ours = head_.magic == kMagic && head_.bytes <= kFrameBytes;
  left_ = is_ours && head_.tag.kind == OpKind::kGoodbye;
  if (!is_ours) bad_frame_.store(true, std::memory_order_relaxed);
  if (!is_ours || left_) return read_head();
  have_head_ = true;
  payload_done_ = 0;
  return Turn::kDone;
}

Turn TcpWire::expect(const Tag& tag, std::size_t bytes) {
  const Turn turn = read_head();
  if (turn != Turn::kDone) return turn;
  if (head_.tag != tag || head_.bytes != bytes) return mismatch(head_.tag, head_.bytes);
  return Turn::kDone;
}

Turn TcpWire::read_payload(std::byte* to) {
  while (payload_done_ < head_.bytes) {
    const std::size_t wanted = head_.bytes - payload_done_;
    if (ahead_begin_ == ahead_end_) {
      const Turn turn = fill(to + payload_done_, wanted);
      if (turn != Turn::kDone) return turn;
      continue;
    }
    const std::size_t step = std::min(wanted, ahead_end_ - ahead_begin_);
    copy_bytes(to + payload_done_, &ahead_[ahead_begin_], step);
    ahead_begin_ += step;
    payload_done_ += step;
  }
  return Turn::kDone;
}

Turn TcpWire::receive(const Tag& tag, void* to, std::size_t bytes) {
  Turn turn = expect(tag, bytes);
  if (turn == Turn::kDone) turn = read_payload(as_bytes(to));
  if (turn == Turn::kDone) release();
  return turn;
}

Turn TcpWire::view(const Tag& tag, std::size_t bytes, const std::byte** data) {
  Turn turn = expect(tag, bytes);
  if (turn == Turn::kDone) turn = read_payload(staging_.get());
  if (turn == Turn::kDone) *data = staging_.get();
  return turn;
}

Turn TcpWire::release() {
  have_head_ = false;
  return Turn::kDone;
}

Turn TcpWire::peek(Tag* tag, std::size_t* bytes) {
  const Turn turn = read_head();
  if (turn != Turn::kDone) return turn;
  *tag = head_.tag;
  *bytes = head_.bytes;
  return Turn::kDone;
}

std::string TcpWire::trouble() const {
  if (is_bad()) return "a frame that is none of ours";
  if (const int code = send_error_.load(std::memory_order_relaxed); code != 0) {
    return "send: " + errno_text(code);
  }
  if (const int code = receive_error_.load(std::memory_order_relaxed); code != 0) {
    return "recv: " + errno_text(code);
  }
  return "its end of the data connection closed without goodbye";
}

void TcpWire::shut_down() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace standfast
