#include "core/fabric/verbs/wire.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/error.h"

namespace standfast {
namespace {

constexpr std::uint32_t kGoodbyeMagic = 0x65796253;  // "Sbye"
// How often a waiting half asks the devices whether the cables are still there.
constexpr Nanos kPortsEvery = 1 * kSecond;
// How long messages may take that were sent before a goodbye.
constexpr Nanos kLateMax = 1 * kSecond;

}  // namespace

// The other half lets go soon: nothing waits while it holds the link.
class VerbsWire::Hold {
 public:
  explicit Hold(const VerbsWire& wire) : held_(wire.held_) {
    constexpr int kTries = 200;
    int tries = 0;
    while (held_.test_and_set(std::memory_order_acquire)) {
      if (++tries % kTries == 0) sched_yield();
    }
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { held_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& held_;
};

VerbsWire::VerbsWire(int peer, std::string link_text, Fd socket, std::unique_ptr<verbs::Link> link)
    : Wire(peer, std::move(link_text)),
      socket_(std::move(socket)),
      link_(std::move(link)),
      staging_(std::make_unique<std::byte[]>(kFrameBytes)),
      ports_checked_ns_(now_ns()) {}

Turn VerbsWire::send(const Tag& tag, const void* data, std::size_t bytes) {
  SF_CHECK(bytes <= kFrameBytes);
  const Hold hold(*this);
  if (accepted_ - sent_ == kQueue) {
    const Turn turn = advance();
    if (turn != Turn::kDone && turn != Turn::kNotYet) return turn;
    if (accepted_ - sent_ == kQueue) return Turn::kNotYet;
  }
  queue_[accepted_++ % kQueue] = {tag, as_bytes(data), static_cast<std::uint32_t>(bytes), 0, false};
  sending_ = true;
  return advance() == Turn::kBroken ? Turn::kBroken : Turn::kDone;
}

Turn VerbsWire::flush() {
  const Hold hold(*this);
  return advance();
}

// As many messages as there is room for.
Turn VerbsWire::advance() {
  while (sent_ != accepted_) {
    Outgoing& frame = queue_[sent_ % kQueue];
    while (!frame.begun || frame.moved < frame.bytes) {
      const bool went = link_->send(frame.tag, frame.bytes, frame.moved, frame.data);
      note();
      if (!went) return no_room();
      const verbs::Size size = verbs::size_for(frame.bytes, link_->has_large());
      frame.moved +=
          static_cast<std::uint32_t>(verbs::payload_bytes(frame.bytes, frame.moved, size));
      frame.begun = true;
    }
    ++sent_;
  }
  sending_ = false;
  return link_->is_broken() ? Turn::kBroken : Turn::kDone;
}

// A peer that said goodbye takes nothing any more.
Turn VerbsWire::no_room() const {
  if (link_->is_broken()) return Turn::kBroken;
  if (has_left()) return Turn::kLeft;
  return ended_ ? Turn::kBroken : Turn::kNotYet;
}

// RDMA may lose what is under way when a queue pair goes; the socket does not.
void VerbsWire::say_goodbye() {
  const Hold hold(*this);
  if (sent_ != accepted_) return;  // a frame was cut short: what is said would not be true
  const Goodbye goodbye = {kGoodbyeMagic, link_->sent()};
  // A failure means that the peer is gone; the watch will say so.
  (void)send_some(socket_.get(), &goodbye, sizeof goodbye);
  ::shutdown(socket_.get(), SHUT_WR);
}

// There is no message now; is there ever going to be?
Turn VerbsWire::idle() const {
  if (has_left() && goodbye_.messages == link_->taken() && !have_frame_) return Turn::kLeft;
  if (link_->is_broken() || is_disorderly_) return Turn::kBroken;
  if (!ended_) return Turn::kNotYet;
  const bool may_come = has_left() && now_ns() - ended_ns_ < kLateMax;
  return may_come ? Turn::kNotYet : Turn::kBroken;
}

Turn VerbsWire::next_message(const verbs::Arrival** arrival, const verbs::Landing* landing) {
  *arrival = is_disorderly_ ? nullptr : link_->next(landing);
  note();
  if (*arrival == nullptr) return idle();
  is_disorderly_ = (*arrival)->head->offset != (have_frame_ ? frame_done_ : 0);
  return is_disorderly_ ? Turn::kBroken : Turn::kDone;
}

// `landing`: where the frame is wanted, or null.
Turn VerbsWire::expect(const Tag& tag, std::size_t bytes, std::byte* landing) {
  if (!have_frame_) {
    const verbs::Arrival* arrival = nullptr;
    const verbs::Landing wanted{tag, bytes, landing};
    const bool may_land =
        landing != nullptr && verbs::size_for(bytes, link_->has_large()) == verbs::Size::kLarge;
    const Turn turn = next_message(&arrival, may_land ? &wanted : nullptr);
    if (turn != Turn::kDone) return turn;
    frame_tag_ = arrival->head->tag;
    frame_bytes_ = arrival->head->frame_bytes;
    frame_done_ = 0;
    have_frame_ = true;
  }
  if (frame_tag_ != tag || frame_bytes_ != bytes) return mismatch(frame_tag_, frame_bytes_);
  return Turn::kDone;
}

// Takes what is left of the frame.
Turn VerbsWire::collect(std::byte* to) {
  do {
    const verbs::Arrival* arrival = nullptr;
    const Turn turn = next_message(&arrival);
    if (turn != Turn::kDone) return turn;
    if (!arrival->has_landed) copy_bytes(to + frame_done_, arrival->payload, arrival->bytes);
    frame_done_ += static_cast<std::uint32_t>(arrival->bytes);
    link_->release();
  } while (frame_done_ < frame_bytes_);
  return Turn::kDone;
}

Turn VerbsWire::receive(const Tag& tag, void* to, std::size_t bytes) {
  const Hold hold(*this);
  Turn turn = expect(tag, bytes, as_bytes(to));
  if (turn == Turn::kDone) turn = collect(as_bytes(to));
  if (turn == Turn::kDone) have_frame_ = false;
  return turn;
}

Turn VerbsWire::view(const Tag& tag, std::size_t bytes, const std::byte** data) {
  const Hold hold(*this);
  Turn turn = expect(tag, bytes, nullptr);
  if (turn != Turn::kDone) return turn;
  if (frame_done_ == 0) {
    const verbs::Arrival* arrival = nullptr;
    turn = next_message(&arrival);
    if (turn != Turn::kDone) return turn;
    is_in_place_ = arrival->bytes == frame_bytes_;
    *data = arrival->payload;
    if (is_in_place_) return turn;
  }
  if (frame_done_ < frame_bytes_) turn = collect(staging_.get());
  if (turn == Turn::kDone) *data = staging_.get();
  return turn;
}

Turn VerbsWire::release() {
  const Hold hold(*this);
  if (is_in_place_) link_->release();
  is_in_place_ = false;
  have_frame_ = false;
  return Turn::kDone;
}

Turn VerbsWire::peek(Tag* tag, std::size_t* bytes) {
  const Hold hold(*this);
  const verbs::Arrival* arrival = nullptr;
  if (!have_frame_) {
    const Turn turn = next_message(&arrival);
    if (turn != Turn::kDone) return turn;
    *tag = arrival->head->tag;
    *bytes = arrival->head->frame_bytes;
    return Turn::kDone;
  }
  *tag = frame_tag_;
  *bytes = frame_bytes_;
  return Turn::kDone;
}

void VerbsWire::note() {
  if (link_->arrivals() == noted_) return;
  noted_ = link_->arrivals();
  note_received();
}

// Called now and then while a half waits: what takes a system call is looked at here alone.
void VerbsWire::asleep(Half) {
  {
    const Hold hold(*this);
    read_socket();
    link_->look();
    note();
  }
  check_ports();
}

// A port that was down for a while may have lost what was under way, and a link that is up again
// may be another one. Of a peer that has left, or is gone, others tell.
std::string VerbsWire::ailment() {
  {
    const Hold hold(*this);
    read_socket();
    if (ended_ || has_left()) return "";
  }
  check_ports();
  const Hold hold(*this);
  return link_->is_broken() ? link_->trouble() : "";
}

// The devices are asked without the lock: nobody knows for how long their library keeps a caller.
void VerbsWire::check_ports() {
  {
    const Hold hold(*this);
    const Nanos now = now_ns();
    if (now - ports_checked_ns_ < kPortsEvery) return;
    ports_checked_ns_ = now;
  }
  const std::string trouble = link_->port_trouble();
  if (trouble.empty()) return;
  const Hold hold(*this);
  link_->break_off(trouble);
}

bool VerbsWire::answer_bell(Half) {
  const Hold hold(*this);
  read_socket();
  return ended_ || has_left();
}

void VerbsWire::read_socket() {
  while (!ended_) {
    std::byte beyond[16];
    const bool is_whole = has_left();
    const Transfer transfer =
        is_whole ? receive_some(socket_.get(), beyond, sizeof beyond)
                 : receive_some(socket_.get(), as_bytes(&goodbye_) + goodbye_bytes_,
                                sizeof goodbye_ - goodbye_bytes_);
    if (transfer.kind == Transfer::Kind::kWouldBlock) return;
    const bool is_foreign = transfer.kind == Transfer::Kind::kMoved &&
                            (is_whole || (goodbye_bytes_ + transfer.bytes == sizeof goodbye_ &&
                                          goodbye_.magic != kGoodbyeMagic));
    if (transfer.kind == Transfer::Kind::kMoved && !is_foreign) {
      goodbye_bytes_ += transfer.bytes;
      continue;
    }
    if (is_foreign) goodbye_bytes_ = 0;
    ended_ = true;
    ended_ns_ = now_ns();
    socket_error_ = transfer.code;
  }
}

std::string VerbsWire::trouble() const {
  const Hold hold(*this);
  if (link_->is_broken()) return link_->trouble();
  if (is_disorderly_) return "a message that continues no frame";
  if (socket_error_ != 0) return "recv: " + errno_text(socket_error_);
  if (has_left()) {
    return "it left, but only " + std::to_string(link_->taken()) + " of its " +
           std::to_string(goodbye_.messages) + " messages came";
  }
  return "its end of the connection beside the RDMA link closed without goodbye";
}

void VerbsWire::shut_down() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace standfast
