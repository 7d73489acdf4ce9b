#include "core/fabric/shm/wire.h"

#include <sys/socket.h>

#include <optional>

#include "core/base/bytes.h"
#include "core/base/error.h"

namespace standfast {
namespace {

// What a ring of the bell is for.
constexpr char kFrameReady = 'f';
constexpr char kSlotFree = 's';

bool is_lent(const SlotHead& head) {
  return head.bytes > kInlineBytes && head.payload.place >= kSlots;
}

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
    learn_freed();
    if (sent_ - freed_seen_ == kSlots) return no_room();
  }
  SlotHead& head = out_.heads[sent_ % kSlots];
  head.tag = tag;
  head.bytes = static_cast<std::uint32_t>(bytes);
  if (bytes <= kInlineBytes) {
    copy_bytes(head.inline_payload, data, bytes);
  } else if (!lend(head, data) && !stage(head, data)) {
    return Turn::kBroken;
  }
  head.ready.store(static_cast<std::uint32_t>(++sent_), std::memory_order_seq_cst);
  if (out_.receiver_asleep.load(std::memory_order_seq_cst) != 0) {
    ring(out_.receiver_asleep, kFrameReady);
  }
  return Turn::kDone;
}

// True if the peer will read the frame where it lies.
bool ShmWire::lend(SlotHead& head, const void* data) {
  if (head.bytes <= kEagerBytes || !shows_arena()) return false;
  const Tag& tag = head.tag;
  const bool is_message = tag.kind == OpKind::kSend;
  if (is_message && tag.count * dtype_bytes(tag.dtype) <= kEagerMessageBytes) return false;
  const std::optional<std::uint64_t> offset = arena_->offset_of(data, head.bytes);
  if (!offset || out_.maps_arena.load(std::memory_order_relaxed) == 0) return false;
  head.payload = {kInArena, *offset};
  lent_ = sent_ + 1;
  sending_ = true;
  return true;
}

// Whether this process has an arena, of which the peer is told then.
bool ShmWire::shows_arena() {
  if (arena_ != nullptr) return true;
  arena_ = Arena::made();
  if (arena_ == nullptr) return false;
  out_.arena = arena_->name();
  out_.has_arena.store(1, std::memory_order_release);
  return true;
}

// False: there is no memory for it.
bool ShmWire::stage(SlotHead& head, const void* data) {
  // The look costs a trip to the peer's core, which only a long copy earns back.
  if (head.bytes > kEagerBytes) learn_freed();
  const PayloadPlace place = free_place();
  if (last_use_[place] == 0 && !take(place)) return false;
  copy_bytes(out_.payloads[place], data, head.bytes);
  head.payload = {place, 0};
  last_use_[place] = sent_ + 1;
  return true;
}

// Before the first frame lies there.
bool ShmWire::take(PayloadPlace place) {
  const int code = mapping_->take(out_.payloads[place], kFrameBytes);
  if (code == 0) return true;
  lack_ = SystemError("shared memory of " + std::to_string(kFrameBytes) + " bytes", code).what();
  return false;
}

void ShmWire::learn_freed() {
  const std::uint32_t freed = out_.freed.load(std::memory_order_seq_cst);
  freed_seen_ = sent_ - (static_cast<std::uint32_t>(sent_) - freed);
}

// Of the payloads that the peer has read, the one that was in use last: it is in the caches, and
// frames that come and go in turn need no more of them than two or three.
PayloadPlace ShmWire::free_place() const {
  PayloadPlace best = kSlots;
  for (PayloadPlace place = 0; place < kSlots; ++place) {
    if (last_use_[place] > freed_seen_) continue;
    if (best == kSlots || last_use_[place] > last_use_[best]) best = place;
  }
  SF_CHECK(best < kSlots);  // fewer frames than payloads are on their way
  return best;
}

// Done when the peer has read the last frame that was lent to it.
Turn ShmWire::flush() {
  if (!sending_) return Turn::kDone;
  // A peer that left or died may have read everything before that: the look at its end comes first.
  const Turn otherwise = no_room();
  learn_freed();
  if (freed_seen_ < lent_) return otherwise;
  sending_ = false;
  return Turn::kDone;
}

void ShmWire::withdraw() {
  out_.withdrawn.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
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
  return head.ready.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(received_ + 1)
             ? &head
             : nullptr;
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

Turn ShmWire::expect(const Tag& tag, std::size_t bytes, SlotHead** head) {
  *head = next_frame();
  if (*head == nullptr) return idle();
  if ((*head)->tag != tag || (*head)->bytes != bytes) return mismatch((*head)->tag, (*head)->bytes);
  if (bytes > kEagerBytes && !looked_for_arena_) look_for_arena();
  return Turn::kDone;
}

// The first frame that is worth it after the peer has an arena shows that to this rank; from then
// on it is read where it lies.
void ShmWire::look_for_arena() {
  if (in_.has_arena.load(std::memory_order_acquire) == 0) return;
  looked_for_arena_ = true;
  peers_arena_ = RegionMapping::of(in_.arena);
  if (peers_arena_) in_.maps_arena.store(1, std::memory_order_relaxed);
}

// Null: not within what the peer may lend.
const std::byte* ShmWire::payload(const SlotHead& head) const {
  if (head.bytes <= kInlineBytes) return head.inline_payload;
  const auto [place, offset] = head.payload;
  if (place < kSlots) return in_.payloads[place];
  return peers_arena_ ? peers_arena_->at(offset, head.bytes) : nullptr;
}

Turn ShmWire::receive(const Tag& tag, void* to, std::size_t bytes) {
  const std::byte* from = nullptr;
  const Turn turn = view(tag, bytes, &from);
  if (turn != Turn::kDone) return turn;
  copy_bytes(to, from, bytes);
  return release();
}

Turn ShmWire::view(const Tag& tag, std::size_t bytes, const std::byte** data) {
  SlotHead* head = nullptr;
  const Turn turn = expect(tag, bytes, &head);
  if (turn != Turn::kDone) return turn;
  *data = payload(*head);
  return *data != nullptr ? Turn::kDone : Turn::kBroken;
}

Turn ShmWire::release() {
  if (is_lent(in_.heads[received_ % kSlots])) {
    std::atomic_thread_fence(std::memory_order_acquire);
    if (in_.withdrawn.load(std::memory_order_relaxed) != 0) return Turn::kBroken;
  }
  note_received();
  in_.freed.store(static_cast<std::uint32_t>(++received_), std::memory_order_seq_cst);
  if (in_.sender_asleep.load(std::memory_order_seq_cst) != 0) ring(in_.sender_asleep, kSlotFree);
  return Turn::kDone;
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
    if (transfer.bytes < sizeof letters) return for_other;  // an end is seen by the next poll
  }
}

std::string ShmWire::trouble() const {
  if (!lack_.empty()) return lack_;
  if (in_.withdrawn.load(std::memory_order_relaxed) != 0) {
    return "the peer's operation ended before what it had lent was read";
  }
  return "its end of the shared-memory doorbell closed without goodbye";
}

void ShmWire::shut_down() { ::shutdown(bell_.get(), SHUT_RDWR); }

}  // namespace standfast
