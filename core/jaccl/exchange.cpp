#include "core/jaccl/exchange.h"

#include <algorithm>
#include <utility>

#include "core/jaccl/stamp.h"

namespace standfast::jaccl {

std::size_t Exchange::send(Lane& lane, std::size_t count, Fill fill) {
  lane.begin_sending(message_);
  outgoing_.push_back({&lane, count, std::move(fill)});
  return outgoing_.size() - 1;
}

std::size_t Exchange::receive(Lane& lane, std::size_t count, Take take) {
  lane.begin_receiving(message_);
  incoming_.push_back({&lane, count, std::move(take)});
  return incoming_.size() - 1;
}

// Receives come first: a message may be lost where none is posted.
Polled Exchange::step(Nanos quiet) {
  Polled polled;
  polled.moved = expect_all();
  polled.moved |= send_all();
  polled.moved |= take_all();
  if (find_fault(polled)) return polled;
  const auto is_done = [](const auto& flow) { return flow.is_done(); };
  if (std::all_of(outgoing_.begin(), outgoing_.end(), is_done) &&
      std::all_of(incoming_.begin(), incoming_.end(), is_done)) {
    polled.turn = Turn::kDone;
    return polled;
  }
  polled.peer = awaited();
  if (polled.moved) {
    ports_due_ = kPortsAfter;
  } else if (quiet >= ports_due_) {
    ports_due_ = quiet + kPortsAfter;
    find_dead_port(polled);
  }
  return polled;
}

bool Exchange::expect_all() {
  bool moved = false;
  for (Incoming& flow : incoming_) {
    while (flow.lane->expected() < flow.count && flow.lane->can_expect() && flow.lane->expect()) {
      moved = true;
    }
  }
  return moved;
}

bool Exchange::send_all() {
  bool moved = false;
  for (Outgoing& flow : outgoing_) {
    moved |= flow.lane->poll_sent();
    while (flow.next < flow.count && flow.lane->can_send() && fill_next(flow) &&
           flow.lane->send()) {
      ++flow.next;
      moved = true;
    }
  }
  return moved;
}

bool Exchange::fill_next(Outgoing& flow) {
  Lane& lane = *flow.lane;
  const Used used = flow.fill(flow.next, lane.outgoing());
  if (used && lane.is_stamped() && has_room_for_stamp(message_, *used)) {
    put_stamp(lane.outgoing(), message_, {kStampMagic, lane.outgoing_ordinal(), operation_});
  }
  return used.has_value();
}

// What one lane brought may be what another's had to wait for.
bool Exchange::take_all() {
  bool moved = false;
  for (Incoming& flow : incoming_) moved |= flow.lane->poll_arrived();
  bool took = true;
  while (took) {
    took = false;
    for (Incoming& flow : incoming_) took |= take_from(flow);
    moved |= took;
  }
  return moved;
}

bool Exchange::take_from(Incoming& flow) {
  bool took = false;
  while (flow.next < flow.lane->arrived() && out_of_step_ < 0) {
    const Used used = flow.take(flow.next, flow.lane->incoming());
    if (!used) break;
    check_stamp(*flow.lane, *used);
    flow.lane->take();
    ++flow.next;
    took = true;
  }
  return took;
}

// A message that was lost, or is another operation's, shows at the next one that has room: within
// the operation, but for those whose last message fills its frame.
void Exchange::check_stamp(const Lane& lane, std::size_t used) {
  if (!lane.is_stamped() || !has_room_for_stamp(message_, used)) return;
  const Stamp stamp = stamp_of(lane.incoming(), message_);
  const std::uint64_t ordinal = lane.incoming_ordinal();
  if (stamp.magic == kStampMagic && stamp.operation == operation_ && stamp.ordinal == ordinal) {
    return;
  }
  out_of_step_ = lane.peer();
  const bool is_stamp = stamp.magic == kStampMagic;
  trouble_ = "message " + std::to_string(ordinal) + " of rank " + std::to_string(lane.peer()) +
             " over " + lane.text();
  if (is_stamp && stamp.ordinal != ordinal) {
    trouble_ +=
        " is its number " + std::to_string(stamp.ordinal) + ": messages were lost, or came twice";
  } else if (is_stamp) {
    trouble_ += " belongs to another operation";
  } else {
    trouble_ += " is another than should have come: one was lost, or an operation differs";
  }
}

bool Exchange::find_fault(Polled& polled) {
  if (out_of_step_ >= 0) {
    polled.turn = Turn::kMismatch;
    polled.peer = out_of_step_;
    return true;
  }
  const auto found = [&](const Lane& lane, Fault fault, const std::string& trouble) {
    if (fault == Fault::kNone) return false;
    polled.turn = fault == Fault::kOtherSizes ? Turn::kMismatch : Turn::kBroken;
    polled.peer = lane.peer();
    trouble_ = trouble;
    return true;
  };
  for (const Incoming& flow : incoming_) {
    const Lane& lane = *flow.lane;
    if (found(lane, lane.receiving_fault(), lane.receiving_trouble())) return true;
  }
  for (const Outgoing& flow : outgoing_) {
    const Lane& lane = *flow.lane;
    if (found(lane, lane.sending_fault(), lane.sending_trouble())) return true;
  }
  return false;
}

// A device that has lost its link says so only when it is asked.
bool Exchange::find_dead_port(Polled& polled) {
  const auto found = [&](const Lane& lane) {
    trouble_ = lane.port_trouble();
    if (trouble_.empty()) return false;
    trouble_ = lane.text() + ": " + trouble_;
    polled.turn = Turn::kBroken;
    polled.peer = lane.peer();
    return true;
  };
  for (const Incoming& flow : incoming_) {
    if (!flow.is_done() && found(*flow.lane)) return true;
  }
  for (const Outgoing& flow : outgoing_) {
    if (!flow.is_done() && found(*flow.lane)) return true;
  }
  return false;
}

int Exchange::awaited() const {
  for (const Incoming& flow : incoming_) {
    if (!flow.is_done() && flow.lane->arrived() == flow.next) return flow.lane->peer();
  }
  for (const Outgoing& flow : outgoing_) {
    if (flow.lane->unsent() > 0) return flow.lane->peer();
  }
  return -1;
}

}  // namespace standfast::jaccl
