#include "core/fabric/shm/wire.h"

#include <sys/socket.h>

#include "core/base/bytes.h"
#include "core/base/error.h"

namespace standfast {
namespace {

// What a ring of the bell is for.
constexpr char kFrameReady = 'f';
constexpr char kSlotFree = 's';

}  // namespace

ShmWire::ShmWire(int peer, std::string link, Fd bell, std::shared_ptr<Mapping> mapping, bool first)
    : Wire(peer, std::move(link)),
      bell_(std::move(bell)),
      mapping_(std::move(mapping)),
      out_(mapping_->segment().lanes[first ? 0 : 1]),
      in_(mapping_->segment().lanes[first ? 1 : 0]) {}

Turn ShmWire::send(const Tag& tag, const void* data, std::size_t bytes) {
  SF_CHECK(bytes <= kFrameBytes);
  if (sent_ - freed_seen_ == kSlots) {
    freed_seen_ = out_.freed.load(std::memory_order_seq_cst);
    if (sent_ - freed_seen_ == kSlots) return no_room();
  }
  SlotHead& head = out_.heads[sent_ % kSlots];
  head.tag = tag;
  head.bytes = static_cast<std::uint32_t>(bytes);
  std::byte* to =
      bytes <= sizeof head.inline_payload ? head.inline_payload : out_.payloads[sent_ % kSlots];
  copy_bytes(to, data, bytes);
  head.ready.store(++sent_, std::memory_order_seq_cst);
  if (out_.receiver_asleep.load(std::memory_order_seq_cst) != 0) {
    ring(out_.receiver_asleep, kFrameReady);
  }
  return Turn::kDone;
}

void ShmWire::say_goodbye() {
  out_.closed.store(1, std::memory_order_seq_cst);
  if (out_.receiver_asleep.load(std::memory_order_seq_cst) != 0) {
    ring(out_.receiver_asleep, kFrameReady);
  }
}

// The next complete frame, or null.
SlotHead* ShmWire::next_frame() {
  SlotHead& head = in_.heads[received_ % kSlots];
  return head.ready.load(std::memory_order_seq_cst) == received_ + 1 ? &head : nullptr;
}

// A peer that said goodbye takes no frame any more, whatever it has sent before.
Turn ShmWire::no_room() {
  if (in_.closed.load(std::memory_order_seq_cst) != 0) return Turn::kLeft;
  return bell_ended_.load(std::memory_order_relaxed) ? Turn::kBroken : Turn::kNotYet;
}

// There is no frame now; is there ever going to be?
Turn ShmWire::idle() {
  if (in_.closed.load(std::memory_order_seq_cst) != 0 && next_frame() == nullptr) {
    return Turn::kLeft;
  }
  return bell_ended_.load(std::memory_order_relaxed) ? Turn::kBroken : Turn::kNotYet;
}

const std::byte* ShmWire::payload(const SlotHead& head) const {
  return head.bytes <= sizeof head.inline_payload ? head.inline_payload
                                                  : in_.payloads[received_ % kSlots];
}

Turn ShmWire::expect(const Tag& tag, std::size_t bytes, SlotHead** head) {
  *head = next_frame();
  if (*head == nullptr) return idle();
  if ((*head)->tag != tag || (*head)->bytes != bytes) return mismatch((*head)->tag, (*head)->bytes);
  return Turn::kDone;
}

Turn ShmWire::receive(const Tag& tag, void* to, std::size_t bytes) {
  SlotHead* head = nullptr;
  const Turn turn = expect(tag, bytes, &head);
  if (turn != Turn::kDone) return turn;
  copy_bytes(to, payload(*head), bytes);
  release();
  return Turn::kDone;
}

Turn ShmWire::view(const Tag& tag, std::size_t bytes, const std::byte** data) {
  SlotHead* head = nullptr;
  const Turn turn = expect(tag, bytes, &head);
  if (turn == Turn::kDone) *data = payload(*head);
  return turn;
}

void ShmWire::release() {
  note_received();
  in_.freed.store(++received_, std::memory_order_seq_cst);
  if (in_.sender_asleep.load(std::memory_order_seq_cst) != 0) ring(in_.sender_asleep, kSlotFree);
}

Turn ShmWire::peek(Tag* tag, std::size_t* bytes) {
  const SlotHead* head = next_frame();
  if (head == nullptr) return idle();
  *tag = head->tag;
  *bytes = head->bytes;
  return Turn::kDone;
}

void ShmWire::asleep(Half half) {
  auto& flag = half == Half::kSending ? out_.sender_asleep : in_.receiver_asleep;
  flag.store(1, std::memory_order_seq_cst);
}

void ShmWire::awake(Half half) {
  auto& flag = half == Half::kSending ? out_.sender_asleep : in_.receiver_asleep;
  flag.store(0, std::memory_order_relaxed);
}

// One byte per sleep at the most: whoever clears the flag rings.
void ShmWire::ring(std::atomic<std::uint32_t>& sleeper, char letter) {
  if (sleeper.exchange(0, std::memory_order_seq_cst) == 0) return;
  // A failure means that the peer is gone; the watch will say so.
  (void)send_some(bell_.get(), &letter, 1);
}

bool ShmWire::answer_bell(Half half) {
  const char mine = half == Half::kSending ? kSlotFree : kFrameReady;
  char letters[16];
  bool for_other = false;
  for (;;) {
    const Transfer transfer = receive_some(bell_.get(), letters, sizeof letters);
    if (transfer.kind == Transfer::Kind::kWouldBlock) return for_other;
    if (transfer.kind != Transfer::Kind::kMoved) {
      bell_ended_.store(true, std::memory_order_relaxed);
      return true;
    }
    for (std::size_t i = 0; i < transfer.bytes; ++i) for_other |= letters[i] != mine;
  }
}

std::string ShmWire::trouble() const {
  return "its end of the shared-memory doorbell closed without goodbye";
}

void ShmWire::shut_down() { ::shutdown(bell_.get(), SHUT_RDWR); }

}  // namespace standfast
