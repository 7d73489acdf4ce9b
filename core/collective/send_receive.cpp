// send and recv between two ranks. An empty message is one empty frame; where the group verifies, a
// frame with the message's digest follows.
#include <algorithm>

#include "core/collective/algorithms.h"
#include "core/collective/verify.h"

namespace standfast {

namespace {

std::size_t frames_of(std::size_t bytes) {
  return std::max<std::size_t>(1, rounds_of(bytes, kFrameBytes));
}

Piece frame_in_turn(const Comm& comm, std::size_t bytes, std::size_t turn) {
  return piece_of(bytes, kFrameBytes, piece_in_turn(comm.tag(), turn, frames_of(bytes)));
}

}  // namespace

Outcome send(Comm& comm, int to, const std::byte* data, std::size_t bytes) {
  for (std::size_t turn = 0; turn < frames_of(bytes); ++turn) {
    const Piece at = frame_in_turn(comm, bytes, turn);
    SF_TRY(comm.send(to, data + at.begin, at.length));
  }
  return comm.verifies() ? verify_sent(comm, to, data, bytes) : comm.flush();
}

Outcome receive(Comm& comm, int from, std::byte* data, std::size_t bytes) {
  for (std::size_t turn = 0; turn < frames_of(bytes); ++turn) {
    const Piece at = frame_in_turn(comm, bytes, turn);
    SF_TRY(comm.receive(from, data + at.begin, at.length));
  }
  return comm.verifies() ? verify_received(comm, from, data, bytes) : Outcome::kOk;
}

namespace {

struct Senders {
  int ready = -1;  // has such a message, or has broken off
  int other = -1;  // has something else, or has ended
  bool may_come = false;
};

Senders look_for_sender(Comm& comm, std::int32_t tag, int last) {
  Senders found;
  for (int step = 1; step <= comm.size(); ++step) {
    const int peer = (last + step) % comm.size();
    if (peer == comm.rank() || !comm.has_wire(peer)) continue;
    Tag next;
    std::size_t bytes = 0;
    const Turn turn = comm.wire(peer).peek(&next, &bytes);
    const bool is_ours =
        turn == Turn::kDone && next.kind == OpKind::kSend && next.root_or_tag == tag;
    // A connection that breaks is no goodbye: what was to come may be lost.
    if (is_ours || turn == Turn::kBroken) {
      found.ready = peer;
      return found;
    }
    if (turn == Turn::kNotYet) {
      found.may_come = true;
    } else if (found.other < 0 || turn == Turn::kDone) {
      found.other = peer;
    }
  }
  return found;
}

}  // namespace

Outcome find_sender(Comm& comm, std::int32_t tag, int last, int* from) {
  return comm.waiter().poll_until([&](Nanos) {
    const Senders found = look_for_sender(comm, tag, last);
    *from = found.ready >= 0 ? found.ready : found.may_come ? -1 : found.other;
    return Polled{.turn = *from >= 0 ? Turn::kDone : Turn::kNotYet};
  });
}

Outcome receive_bytes(Comm& comm, int from, std::size_t bytes_max, std::vector<std::byte>& blob) {
  Wire& wire = comm.wire(from);
  Tag tag = comm.tag();
  SF_TRY(comm.waiter().until(wire, Half::kReceiving, [&] {
    Tag got;
    std::size_t frame_bytes = 0;
    const Turn turn = wire.peek(&got, &frame_bytes);
    // A frame of something else is a mismatch below; its count is no size of ours.
    if (turn == Turn::kDone && got.kind == tag.kind) tag.count = got.count;
    return turn;
  }));
  if (tag.count > bytes_max) return Outcome::kLimit;
  comm.begin(tag);
  blob.resize(tag.count);
  return receive(comm, from, blob.data(), blob.size());
}

}  // namespace standfast
