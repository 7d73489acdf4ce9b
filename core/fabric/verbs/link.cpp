#include "core/fabric/verbs/link.h"

#include <algorithm>
#include <cerrno>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {
namespace {

constexpr int kPollMost = 16;
constexpr Size kBoth[] = {Size::kSmall, Size::kLarge};

const char* size_name(Size size) { return size == Size::kSmall ? "small" : "large"; }

// A device has at most so long to send what lies there when a link ends.
constexpr Nanos kLastWords = 50 * kMillisecond;

// How far `a` is ahead of `b`.
std::int32_t ahead(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b); }

// What one end writes, so that it takes nothing of its own for the other's.
std::uint32_t key_from(const Link::Ends& ends, bool first) {
  return first ? ends.key : ends.key ^ 0x80000000u;
}

bool is_data(const MessageHead& head) { return head.tag.kind != OpKind::kNone; }

std::string unsound(Soundness soundness, Size size, const MessageHead& head,
                    std::uint32_t expected) {
  const std::string what = std::string("a ") + size_name(size) + " message";
  switch (soundness) {
    case Soundness::kForeign: return what + " that is none of this connection's";
    case Soundness::kDamaged: return what + " that was damaged under way: its checksum is wrong";
    default:
      return what + " number " + std::to_string(head.ordinal) + " came in place of number " +
             std::to_string(expected) + ": one was lost, doubled or out of order";
  }
}

}  // namespace

Link::Link(std::vector<std::unique_ptr<Rail>> rails, Ends ends) : ends_(ends) {
  SF_CHECK(!rails.empty() && rails.size() <= kRailsMax);
  for (auto& rail : rails) {
    tracks_.emplace_back();
    tracks_.back().rail = std::move(rail);
  }
  for (Track& track : tracks_) {
    has_large_ = has_large_ && track.rail->has(Size::kLarge);
    for (const Size size : kBoth) {
      if (track.rail->has(size)) open(track.lanes[at(size)], *track.rail, size);
    }
  }
}

void Link::open(Lane& lane, const Rail& rail, Size size) {
  const int kept = size == Size::kSmall ? kReserve : 0;
  lane.window = rail.posted(size) - kept;
  lane.room_made = static_cast<std::uint32_t>(lane.window);
  lane.in_flight_max = kSendSlots[at(size)];
  for (int slot = kSendSlots[at(size)]; slot-- > 0;) lane.free.push_back(slot);
}

// What was posted before is sent, if it can be: destroying a queue pair takes it back.
Link::~Link() {
  const Nanos end = now_ns() + kLastWords;
  while (!is_broken() && !is_sent() && now_ns() < end) look();
}

std::vector<std::unique_ptr<Rail>> Link::dissolve() {
  std::vector<std::unique_ptr<Rail>> rails;
  for (Track& track : tracks_) rails.push_back(std::move(track.rail));
  tracks_.clear();
  return rails;
}

bool Link::is_sent() const {
  return std::all_of(tracks_.begin(), tracks_.end(), [](const Track& track) {
    return track.lanes[0].in_flight == 0 && track.lanes[1].in_flight == 0;
  });
}

void Link::greet() {
  for (Track& track : tracks_) tell_room(track);
}

bool Link::is_greeted() {
  look();
  return std::all_of(tracks_.begin(), tracks_.end(),
                     [](const Track& track) { return track.greeted; });
}

std::string Link::silent_rails() const {
  std::string text;
  for (const Track& track : tracks_) {
    if (!track.greeted) text += (text.empty() ? "" : ", ") + track.rail->text();
  }
  return text;
}

bool Link::can_send(const Lane& lane, Size size) const {
  const int kept = size == Size::kSmall ? kReserve : 0;
  return ahead(lane.room, lane.data_out) > 0 && lane.in_flight < lane.in_flight_max - kept;
}

bool Link::send(const Tag& tag, std::uint32_t frame_bytes, std::uint32_t offset,
                const std::byte* data) {
  const Size size = size_for(frame_bytes, has_large_);
  Track& track = track_of(sent_);
  Lane& lane = track.lanes[at(size)];
  if (!can_send(lane, size)) {
    collect(track);
    if (is_broken() || !can_send(lane, size)) return false;
  }
  MessageHead head{};
  head.tag = tag;
  head.sequence = sent_;
  head.frame_bytes = frame_bytes;
  head.offset = offset;
  if (!post(track, size, head, data + offset, payload_bytes(frame_bytes, offset, size))) {
    return false;
  }
  ++lane.data_out;
  ++sent_;
  return true;
}

bool Link::post(Track& track, Size size, MessageHead head, const std::byte* payload,
                std::size_t bytes) {
  if (is_broken()) return false;
  Lane& lane = track.lanes[at(size)];
  head.magic = kMagic;
  head.key = key_from(ends_, ends_.first);
  head.ordinal = lane.ordinal_out;
  for (const Size each : kBoth) head.room[at(each)] = track.lanes[at(each)].room_made;
  const int slot = lane.free.back();
  std::byte* const to = track.rail->send_slot(size, slot);
  head.checksum = copy_with_checksum(head, to + sizeof head, payload, bytes);
  copy_bytes(to, &head, sizeof head);
  const int error = track.rail->post_send(size, slot);
  if (error == ENOMEM && lane.in_flight > 0) {
    // The device has less room than it granted. It gets no more than fits.
    const int kept = size == Size::kSmall ? kReserve : 0;
    lane.in_flight_max = std::max(lane.in_flight, kept + 1);
    return false;
  }
  if (error != 0) {
    fail(track, "ibv_post_send failed with " + number_text(error));
    return false;
  }
  lane.free.pop_back();
  ++lane.in_flight;
  ++lane.ordinal_out;
  for (Lane& each : track.lanes) each.room_told = each.room_made;
  return true;
}

void Link::collect(Track& track) {
  if (is_broken() && !trouble_is_flush_) return;
  // Bounded by what can be in flight.
  while (take_some(track, kPollMost)) {
  }
  if (is_broken()) return;
  repost_rest(track);
  if (owes_room(track)) tell_room(track);
}

// What has come, but nothing behind the message that landed: each of those may land in its turn.
void Link::take_up_to_landing(Track& track) {
  while (!has_landed_ && !is_broken() && take_some(track, 1)) {
  }
}

// True if there may be more.
bool Link::take_some(Track& track, int most) {
  Completion done[kPollMost];
  const int count = track.rail->poll(done, most);
  if (count < 0) fail(track, "ibv_poll_cq failed");
  for (int i = 0; i < count; ++i) take(track, done[i]);
  return count == most;
}

void Link::take(Track& track, const Completion& done) {
  Lane& lane = track.lanes[at(done.size)];
  if (done.status != WcStatus::kSuccess) {
    const bool is_flush = done.status == WcStatus::kFlushed;
    // A queue pair that failed flushes whatever else it had: that says nothing new.
    if (is_broken() && (is_flush || !trouble_is_flush_)) return;
    trouble_.clear();
    trouble_is_flush_ = is_flush;
    return fail(track, std::string(done.is_receive ? "a receive" : "a send") + " ended with " +
                           wc_status_text(done.status));
  }
  if (is_broken()) return;
  if (!done.is_receive) {
    --lane.in_flight;
    lane.free.push_back(done.slot);
    return;
  }
  if (done.bytes != message_bytes(done.size)) {
    return fail(track, "a message of " + std::to_string(done.bytes) + " bytes came in place of " +
                           std::to_string(message_bytes(done.size)));
  }
  take_arrival(track, done.size, done.slot);
}

void Link::take_arrival(Track& track, Size size, int slot) {
  Lane& lane = track.lanes[at(size)];
  const std::byte* const message = track.rail->receive_slot(size, slot);
  MessageHead head;
  copy_bytes(&head, message, sizeof head);
  const Expected expected{key_from(ends_, !ends_.first), lane.ordinal_in, size};
  std::byte* const landing = landing_for(head, size);
  const Soundness soundness = judge(head, message + sizeof head, expected, landing);
  if (soundness != Soundness::kGood) {
    return fail(track, unsound(soundness, size, head, lane.ordinal_in));
  }
  ++lane.ordinal_in;
  ++arrivals_;
  track.greeted = true;
  for (const Size each : kBoth) {
    std::uint32_t& room = track.lanes[at(each)].room;
    if (ahead(head.room[at(each)], room) > 0) room = head.room[at(each)];
  }
  if (!is_data(head)) {
    (void)repost(track, size, slot, false);
    return;
  }
  if (lane.arrived_end - lane.arrived_begin == lane.arrived.size()) {
    return fail(track, "more messages came than there was room for");
  }
  lane.arrived[lane.arrived_end++ % lane.arrived.size()] = slot;
  has_landed_ = has_landed_ || landing != nullptr;
}

// The head is not checked yet: what it says must be what is expected, or nothing is written. A
// small message is in the cache after its check, and not worth it.
std::byte* Link::landing_for(const MessageHead& head, Size size) const {
  if (landing_ == nullptr || has_landed_ || size != Size::kLarge) return nullptr;
  const bool is_wanted = head.sequence == taken_ && head.tag == landing_->tag &&
                         head.frame_bytes == landing_->frame_bytes && head.offset == 0;
  return is_wanted ? landing_->to : nullptr;
}

// A device that takes less than it did is asked again later; meanwhile there is less room.
bool Link::repost(Track& track, Size size, int slot, bool makes_room) {
  Lane& lane = track.lanes[at(size)];
  const int error = track.rail->post_receive(size, slot);
  if (error != 0 && error != ENOMEM) {
    fail(track, "ibv_post_recv failed with " + number_text(error));
    return false;
  }
  if (error == ENOMEM) {
    // The reserve is filled first when there is room again: what is told of is what is there.
    lane.unposted.push_back(makes_room ? slot : ~slot);
    return false;
  }
  if (makes_room) ++lane.room_made;
  return true;
}

void Link::repost_rest(Track& track) {
  for (const Size size : kBoth) {
    Lane& lane = track.lanes[at(size)];
    const std::size_t waiting = lane.unposted.size();
    for (std::size_t i = 0; i < waiting && !is_broken(); ++i) {
      const int entry = lane.unposted.back();
      lane.unposted.pop_back();
      const bool makes_room = entry >= 0;
      if (!repost(track, size, makes_room ? entry : ~entry, makes_room)) return;
    }
  }
}

// Half of the window: the sender has the other half until it hears of this one. Between two such
// messages of ours the peer has taken note of one, or used up all room: so at most two per size are
// under way, and the reserve is never short.
bool Link::owes_room(const Track& track) const {
  for (const Size size : kBoth) {
    const Lane& lane = track.lanes[at(size)];
    const std::int32_t owed = ahead(lane.room_made, lane.room_told);
    if (owed > 0 && 2 * owed >= lane.window) return true;
  }
  return false;
}

// Without a free slot it is said later: whoever waits for room here looks again and again.
void Link::tell_room(Track& track) {
  if (track.lanes[0].free.empty()) return;
  MessageHead head{};
  head.tag.kind = OpKind::kNone;
  (void)post(track, Size::kSmall, head, nullptr, 0);
}

const Arrival* Link::front_with(Track& track, std::uint32_t sequence) {
  for (const Size size : kBoth) {
    const Lane& lane = track.lanes[at(size)];
    if (lane.arrived_begin == lane.arrived_end) continue;
    const int slot = lane.arrived[lane.arrived_begin % lane.arrived.size()];
    const std::byte* const message = track.rail->receive_slot(size, slot);
    const auto* head = reinterpret_cast<const MessageHead*>(message);
    if (head->sequence != sequence) continue;
    arrival_ = {head, message + sizeof *head, payload_bytes(head->frame_bytes, head->offset, size),
                has_landed_};
    arrival_size_ = size;
    return &arrival_;
  }
  return nullptr;
}

const Arrival* Link::next(const Landing* landing) {
  if (arrival_.head != nullptr) return &arrival_;
  Track& track = track_of(taken_);
  const Arrival* found = front_with(track, taken_);
  if (found != nullptr || is_broken()) return found;
  if (landing != nullptr) {
    landing_ = landing;
    take_up_to_landing(track);
    landing_ = nullptr;
  }
  if (!has_landed_) collect(track);
  return front_with(track, taken_);
}

void Link::release() {
  Track& track = track_of(taken_);
  Lane& lane = track.lanes[at(arrival_size_)];
  const int slot = lane.arrived[lane.arrived_begin++ % lane.arrived.size()];
  arrival_ = {};
  has_landed_ = false;
  ++taken_;
  if (is_broken()) return;
  (void)repost(track, arrival_size_, slot, true);
  if (!owes_room(track)) return;
  if (track.lanes[0].free.empty()) return collect(track);  // which tells it then
  tell_room(track);
}

void Link::look() {
  for (Track& track : tracks_) collect(track);
}

std::string Link::port_trouble() const {
  for (const Track& track : tracks_) {
    const PortState state = track.rail->port_state();
    if (state == PortState::kActive) continue;
    return track.rail->text() + ": port is " + port_state_name(state) +
           " (cable out, or RDMA off at the other end)";
  }
  return "";
}

void Link::break_off(const std::string& why) {
  if (trouble_.empty()) trouble_ = why;
}

void Link::fail(const Track& track, const std::string& why) {
  break_off(track.rail->text() + ": " + why);
}

}  // namespace standfast::verbs
