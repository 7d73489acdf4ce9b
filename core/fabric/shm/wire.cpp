#include "core/fabric/shm/wire.h"

#include <sys/socket.h>

#include <optional>

#include "core/base/bytes.h"
#include "core/base/error.h"
#include "core/base/stream.h"
#include "core/fabric/shm/route.h"

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
      in_(mapping_->segment().lanes[first ? 1 : 0]) {
  out_.name = pull_name();
  out_.has_name.store(1, std::memory_order_release);
}

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
  if (!may_be_lent(head.tag, head.bytes)) return false;
  if (std::uint64_t offset = 0; lends_arena(data, head.bytes, &offset)) {
    if (!is_better_lent(head.tag, sent_)) return false;
    head.payload = {kInArena, offset};
  } else if (is_better_pulled(head.tag, head.bytes) &&
             out_.can_pull.load(std::memory_order_relaxed) != 0) {
    head.payload = {kInProcess, reinterpret_cast<std::uintptr_t>(data)};
  } else {
    return false;
  }
  lent_from_[sent_ % kSlots] = data;
  lent_ = sent_ + 1;
  sending_ = true;
  return true;
}

// Whether the peer can read this in the arena, and where there.
bool ShmWire::lends_arena(const void* data, std::size_t bytes, std::uint64_t* at) {
  if (!shows_arena()) return false;
  const std::optional<std::uint64_t> offset = arena_->offset_of(data, bytes);
  if (!offset || out_.maps_arena.load(std::memory_order_relaxed) == 0) return false;
  *at = *offset;
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

// The peer cannot read a frame that was lent to it, and waits. What was withdrawn is its caller's.
void ShmWire::copy_after_all() {
  const std::uint64_t refused = out_.refused.load(std::memory_order_seq_cst);
  if (refused == refusal_seen_ || out_.withdrawn.load(std::memory_order_relaxed) != 0) return;
  refusal_seen_ = refused;
  learn_freed();
  const std::uint64_t slot = (refused - 1) % kSlots;
  SlotHead& head = out_.heads[slot];
  const PayloadPlace place = free_place();
  copy_bytes(out_.payloads[place], lent_from_[slot], head.bytes);
  head.payload = {place, 0};
  last_use_[place] = refused;
  out_.copied_after_all.store(refused, std::memory_order_seq_cst);
  if (out_.receiver_asleep.load(std::memory_order_seq_cst) != 0) {
    ring(out_.receiver_asleep, kFrameReady);
  }
}

// Done when the peer has read the last frame that was lent to it.
Turn ShmWire::flush() {
  if (!sending_) return Turn::kDone;
  copy_after_all();
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
  if (bytes > kEagerBytes && !tried_to_pull_) try_to_pull();
  // Until it is copied, its sender may be writing to the head.
  const bool is_refused = refused_ == received_ + 1;
  if (is_refused && in_.copied_after_all.load(std::memory_order_seq_cst) != refused_) return idle();
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

// Likewise, once: what the system allows does not change.
void ShmWire::try_to_pull() {
  if (in_.has_name.load(std::memory_order_acquire) == 0) return;
  tried_to_pull_ = true;
  if (can_pull(in_.name)) in_.can_pull.store(1, std::memory_order_relaxed);
}

// Where the payload is, or, if it has to be pulled: `to`.
Turn ShmWire::locate(const SlotHead& head, void* to, const std::byte** data) {
  *data = head.inline_payload;
  if (head.bytes <= kInlineBytes) return Turn::kDone;
  const auto [place, at] = head.payload;
  if (place == kInProcess) {
    *data = as_bytes(to);
    return pull(in_.name, at, to, head.bytes) ? Turn::kDone : refuse();
  }
  if (place < kSlots) {
    *data = in_.payloads[place];
  } else {
    // Null: not within what the peer may lend.
    *data = peers_arena_ ? peers_arena_->at(at, head.bytes) : nullptr;
  }
  return *data != nullptr ? Turn::kDone : Turn::kBroken;
}

// The next frame lies where this rank cannot reach it. Its sender will copy it, if it lives.
Turn ShmWire::refuse() {
  refused_ = received_ + 1;
  in_.can_pull.store(0, std::memory_order_relaxed);
  in_.refused.store(refused_, std::memory_order_seq_cst);
  if (in_.sender_asleep.load(std::memory_order_seq_cst) != 0) ring(in_.sender_asleep, kSlotFree);
  return idle();
}

Turn ShmWire::receive(const Tag& tag, void* to, std::size_t bytes) {
  SlotHead* head = nullptr;
  const std::byte* from = nullptr;
  Turn turn = expect(tag, bytes, &head);
  if (turn == Turn::kDone) turn = locate(*head, to, &from);
  if (turn != Turn::kDone) return turn;
  if (from == to) return release();
  is_streamed(tag) ? stream_bytes(to, from, bytes) : copy_bytes(to, from, bytes);
  return release();
}

Turn ShmWire::view(const Tag& tag, std::size_t bytes, const std::byte** data) {
  SlotHead* head = nullptr;
  const Turn turn = expect(tag, bytes, &head);
  if (turn != Turn::kDone) return turn;
  const bool is_pulled = is_lent(*head) && head->payload.place == kInProcess;
  if (!is_pulled) return locate(*head, nullptr, data);
  *data = pulled_.data();
  if (pulled_number_ == received_ + 1) return Turn::kDone;
  pulled_.resize(kFrameBytes);
  const Turn pulled = locate(*head, pulled_.data(), data);
  if (pulled == Turn::kDone) pulled_number_ = received_ + 1;
  return pulled;
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
