#include "emulator/transfer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "emulator/clock.h"
#include "emulator/owner.h"
#include "emulator/trace.h"

namespace standfast::emulator {
namespace {

using verbs::QpState;
using verbs::WcOpcode;
using verbs::WcStatus;

// How long a message that is to go after the next one waits for that.
constexpr std::int64_t kHoldNs = 100'000'000;
// Whether a process lives costs a look into the system's tables.
constexpr std::int64_t kLivesForNs = 2'000'000;
constexpr std::int64_t kRnrWaitNs = 10'000'000;

// Of wc_flags.
constexpr std::uint32_t kWithImmediate = 1u << 1;

CableState cable_state(const QueuePair& pair) {
  if (pair.cable == nullptr) return CableState::kDown;
  return static_cast<CableState>(pair.cable->state.load(std::memory_order_acquire));
}

// Whether the peer still is the one that this queue pair was connected to. Looked at after what was
// read of it: if it is another one by now, what was read does not count.
bool is_connected(const QueuePair& pair) {
  return pair.peer.endpoint->incarnation.load(std::memory_order_acquire) == pair.peer.incarnation &&
         pair.cable->epoch.load(std::memory_order_acquire) == pair.peer.cable_epoch;
}

bool peer_is_there(QueuePair& pair, std::int64_t now) {
  if (!is_connected(pair)) return false;
  const Endpoint& peer = *pair.peer.endpoint;
  if (now - pair.peer_checked_ns > kLivesForNs) {
    pair.peer_checked_ns = now;
    pair.peer_alive = is_alive(peer.owner.load(std::memory_order_acquire));
  }
  const auto state = static_cast<QpState>(peer.state.load(std::memory_order_acquire));
  return pair.peer_alive && (state == QpState::kRtr || state == QpState::kRts);
}

verbs::Wc completion_of(const QueuePair& pair, const Request& request, WcOpcode opcode,
                        WcStatus status) {
  verbs::Wc completion{};
  completion.wr_id = request.wr_id;
  completion.status = status;
  completion.opcode = opcode;
  completion.byte_len = request.bytes;
  completion.qp_num = pair.qp_num;
  return completion;
}

// Calls function(memory, bytes) for each part of a gather list that bytes [at, at + bytes) of the
// message lie in. False: a part is not registered.
template <typename Function>
bool each_part(const QueuePair& pair, const Request& request, std::uint32_t at, std::uint32_t bytes,
               Function function) {
  for (std::uint32_t i = 0; i < request.entries && bytes > 0; ++i) {
    const verbs::Sge& entry = request.gather[i];
    if (at >= entry.length) {
      at -= entry.length;
      continue;
    }
    const MemoryRegion* region = find_region(entry.lkey);
    const std::uint64_t begin =
        region == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(region->addr);
    if (region == nullptr || region->pd != pair.pd || entry.addr < begin ||
        entry.addr + entry.length > begin + region->length) {
      return false;
    }
    const std::uint32_t part = std::min(entry.length - at, bytes);
    function(reinterpret_cast<std::byte*>(entry.addr) + at, part);
    bytes -= part;
    at = 0;
  }
  return true;
}

// --- sending

// What the receiver has taken out of the arena is free again.
void refresh_consumed(QueuePair& pair) {
  const std::uint64_t consumed = pair.peer.endpoint->consumed.load(std::memory_order_acquire);
  if (!is_connected(pair) || consumed > pair.written || consumed <= pair.consumed_seen) return;
  pair.consumed_seen = consumed;
  if (consumed == pair.written) {
    // Empty: memory that is still in the caches is used again.
    pair.arena.head = pair.arena.tail = 0;
  } else {
    pair.arena.tail = pair.arena.ends[(consumed - 1) % kDescriptors];
  }
}

std::optional<std::uint32_t> allocate(Arena& arena, std::uint32_t bytes) {
  const std::uint64_t place = arena.head % kArenaBytes;
  const std::uint64_t skipped = place + bytes > kArenaBytes ? kArenaBytes - place : 0;
  if (arena.head + skipped + bytes - arena.tail > kArenaBytes) return std::nullopt;
  arena.head += skipped + (bytes + kLine - 1) / kLine * kLine;
  return static_cast<std::uint32_t>((place + skipped) % kArenaBytes);
}

// A place for the next piece: in its descriptor if it is small, else in the arena.
bool find_room(QueuePair& pair, std::uint32_t bytes, std::uint32_t& offset) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (pair.written - pair.consumed_seen < kDescriptors) {
      if (bytes <= kInlineMax) return true;
      if (const auto place = allocate(pair.arena, bytes)) {
        offset = *place;
        return true;
      }
    }
    if (attempt == 0) refresh_consumed(pair);
  }
  return false;
}

enum class Step { kDone, kWait, kFailed };

Step write_message(QueuePair& pair, SendRequest& request) {
  do {
    const std::uint32_t bytes =
        std::min<std::uint32_t>(kPieceBytes, request.bytes - request.written);
    std::uint32_t offset = 0;
    if (!find_room(pair, bytes, offset)) return Step::kWait;
    Descriptor& descriptor = pair.own->descriptors[pair.written % kDescriptors];
    std::byte* to = bytes <= kInlineMax ? descriptor.small : pair.arena.memory + offset;
    if (!gather(pair, request, request.written, to, bytes)) return Step::kFailed;
    const std::int64_t wrong = request.corrupt_byte - std::int64_t{request.written};
    if (request.corrupt_byte >= 0 && wrong >= 0 && wrong < bytes) to[wrong] ^= std::byte{1};
    hook(pair.store(), nullptr, static_cast<int>(pair.device->port), Call::kWritePiece);
    descriptor.message_bytes = request.bytes;
    descriptor.bytes = bytes;
    descriptor.offset = offset;
    descriptor.first = request.written == 0 ? 1 : 0;
    request.written += bytes;
    descriptor.last = request.written == request.bytes ? 1 : 0;
    descriptor.immediate = request.immediate;
    descriptor.has_immediate = request.has_immediate ? 1 : 0;
    pair.arena.ends[pair.written % kDescriptors] = pair.arena.head;
    // Pairs with the acquire in advance_receives(): who sees the ticket sees the piece.
    descriptor.ticket.store(++pair.written, std::memory_order_release);
  } while (request.written < request.bytes);
  return Step::kDone;
}

bool has_receive(QueuePair& pair) {
  if (pair.admitted < pair.posted_seen) return true;
  const std::uint64_t posted = pair.peer.endpoint->posted.load(std::memory_order_acquire);
  if (is_connected(pair)) pair.posted_seen = posted;
  return pair.admitted < pair.posted_seen;
}

enum class Admission { kGo, kWait, kVanish, kRetryExceeded, kNoReceiveExceeded };

std::int64_t retry_limit_ns(const verbs::QpAttr& attributes) {
  if (attributes.timeout == 0) return INT64_MAX;
  return (std::int64_t{4096} << std::min<int>(attributes.timeout, 31)) * (attributes.retry_cnt + 1);
}

// RC: how long nobody has answered is what the sender knows of its peer.
Admission admit_reliably(QueuePair& pair) {
  const std::int64_t now = now_ns();
  const bool is_there = cable_state(pair) == CableState::kUp && peer_is_there(pair, now);
  if (is_there && has_receive(pair)) {
    pair.blocked_since_ns = 0;
    return Admission::kGo;
  }
  if (pair.blocked_since_ns == 0) pair.blocked_since_ns = now;
  const std::int64_t blocked_ns = now - pair.blocked_since_ns;
  if (!is_there) {
    return blocked_ns > retry_limit_ns(pair.attributes) ? Admission::kRetryExceeded
                                                        : Admission::kWait;
  }
  constexpr int kForEver = 7;
  const int retries = pair.attributes.rnr_retry;
  const bool is_over = retries != kForEver && blocked_ns > kRnrWaitNs * (retries + 1);
  return is_over ? Admission::kNoReceiveExceeded : Admission::kWait;
}

Admission admit(QueuePair& pair) {
  if (pair.is_reliable()) return admit_reliably(pair);
  const Policy policy = pair.store().header().policy;
  if (!is_connected(pair)) {
    if (policy == Policy::kCredit) return Admission::kWait;
    pair.count(Count::kAbsent);
    return Admission::kVanish;
  }
  if (has_receive(pair)) return Admission::kGo;
  if (policy == Policy::kDrop) {
    pair.count(Count::kNoReceive);
    return Admission::kVanish;
  }
  if (policy == Policy::kAbsentCompletes && !peer_is_there(pair, now_ns())) {
    pair.count(Count::kAbsent);
    return Admission::kVanish;
  }
  return Admission::kWait;
}

// A message that goes later than its completion keeps its own copy of the data.
bool keep_copy(const QueuePair& pair, SendRequest& request) {
  if (request.copy != nullptr) return true;
  auto copy = std::make_unique<std::byte[]>(std::max(request.bytes, 1u));
  if (!gather(pair, request, 0, copy.get(), request.bytes)) return false;
  request.copy = std::move(copy);
  return true;
}

void complete_send(QueuePair& pair, const SendRequest& request) {
  WcStatus status = WcStatus::kSuccess;
  if (has_rules(pair.store())) {
    status = static_cast<WcStatus>(status_of_completion(pair.store(), pair.device->port, false));
  }
  if (status != WcStatus::kSuccess) pair.count(Count::kErrors);
  if (request.signaled || status != WcStatus::kSuccess) {
    complete(*static_cast<CompletionQueue*>(pair.send_cq),
             completion_of(pair, request, WcOpcode::kSend, status));
  }
}

void finish_send(QueuePair& pair, SendRequest& request, const char* how) {
  pair.send_frames -= request.frames;
  trace_message(pair, how, request.wr_id, request.bytes,
                [&](std::byte* to) { return gather(pair, request, 0, to, request.bytes); });
  complete_send(pair, request);
}

void write_off(QueuePair& pair) {
  SendRequest request = pair.sends.pop();
  finish_send(pair, request, request.lose ? "lost" : "dropped");
}

// The message at the head is to go after the next one: it completes now, and goes then.
void hold(QueuePair& pair, SendRequest& request) {
  finish_send(pair, request, "reordered");
  pair.count(Count::kReordered);
  pair.held = pair.sends.pop();
  pair.held->signaled = false;
  pair.held->frames = 0;
  pair.held_until_ns = now_ns() + kHoldNs;
}

enum class Sent { kMoved, kWait, kFailed };

WcStatus failed_admission(Admission admission) {
  return admission == Admission::kRetryExceeded ? WcStatus::kRetryExceeded
                                                : WcStatus::kRnrRetryExceeded;
}

// One message, from the queue or held back; `is_held` tells which.
Sent send_one(QueuePair& pair, SendRequest& request, bool is_held) {
  if (request.not_before_ns != 0 && request.not_before_ns > now_ns()) return Sent::kWait;
  if (request.lose) {
    pair.count(Count::kLost);
    write_off(pair);
    return Sent::kMoved;
  }
  if (!request.admitted) {
    const Admission admission = admit(pair);
    if (admission == Admission::kWait) return Sent::kWait;
    if (admission == Admission::kVanish) {
      if (is_held) {
        pair.held.reset();
      } else {
        write_off(pair);
      }
      return Sent::kMoved;
    }
    if (admission != Admission::kGo) {
      fail_pair(pair, failed_admission(admission));
      return Sent::kFailed;
    }
    request.admitted = true;
    ++pair.admitted;
  }
  const Step step = write_message(pair, request);
  if (step == Step::kWait) return Sent::kWait;
  if (step == Step::kFailed) {
    fail_pair(pair, WcStatus::kLocalProtection);
    return Sent::kFailed;
  }
  pair.count(Count::kSent);
  pair.count(Count::kSentBytes, request.bytes);
  return Sent::kMoved;
}

// After a message of the queue has gone: it goes again, or is done with.
void after_sent(QueuePair& pair) {
  SendRequest& request = pair.sends.front();
  if (request.duplicate && keep_copy(pair, request)) {
    pair.count(Count::kDuplicated);
    finish_send(pair, request, "sent");
    request.duplicate = request.signaled = request.admitted = false;
    request.frames = request.written = 0;
    return;
  }
  SendRequest done = pair.sends.pop();
  finish_send(pair, done, "sent");
}

// Whether the message that was held back goes now: behind the next one, or when its time is up; but
// never in the midst of another.
bool held_is_due(QueuePair& pair) {
  if (!pair.held.has_value()) return false;
  if (pair.held->admitted) return true;
  const bool is_amid = !pair.sends.empty() && pair.sends.front().admitted;
  return !is_amid && now_ns() > pair.held_until_ns;
}

bool advance_sends(QueuePair& pair) {
  bool moved = false;
  while (!pair.sends.empty() || pair.held.has_value()) {
    if (held_is_due(pair)) {
      if (send_one(pair, *pair.held, true) != Sent::kMoved) return moved;
      pair.held.reset();
      moved = true;
      continue;
    }
    if (pair.sends.empty()) return moved;
    SendRequest& request = pair.sends.front();
    const std::size_t before = pair.sends.size();
    if (request.reorder) {
      request.reorder = false;
      if (!pair.held.has_value() && keep_copy(pair, request)) {
        hold(pair, request);
        moved = true;
        continue;
      }
    }
    if (send_one(pair, request, false) != Sent::kMoved) return moved;
    moved = true;
    pair.held_until_ns = 0;
    if (pair.sends.size() == before) after_sent(pair);
  }
  return moved;
}

// --- receiving

WcStatus fit(const QueuePair& pair, const ReceiveRequest& request, const Descriptor& descriptor) {
  if (descriptor.message_bytes > request.bytes) return WcStatus::kLocalLength;
  // Thunderbolt counts frames: a receive has to have as many as its send.
  const bool equal = frames_of(descriptor.message_bytes) == frames_of(request.bytes);
  const bool must_be_equal = pair.store().header().profile == Profile::kApple;
  return must_be_equal && !equal ? WcStatus::kLocalLength : WcStatus::kSuccess;
}

bool scatter(QueuePair& pair, const ReceiveRequest& request, const Descriptor& descriptor) {
  const std::byte* from =
      descriptor.bytes <= kInlineMax ? descriptor.small : pair.peer.arena + descriptor.offset;
  return each_part(pair, request, pair.received, descriptor.bytes,
                   [&from](std::byte* memory, std::uint32_t bytes) {
                     std::memcpy(memory, from, bytes);
                     from += bytes;
                   });
}

void finish_receive(QueuePair& pair, const Descriptor& descriptor) {
  ReceiveRequest request = pair.receives.pop();
  pair.receive_frames -= request.frames;
  WcStatus status = pair.receive_status;
  if (status == WcStatus::kSuccess && has_rules(pair.store())) {
    status = static_cast<WcStatus>(status_of_completion(pair.store(), pair.device->port, true));
  }
  if (status == WcStatus::kLocalLength) {
    pair.count(Count::kFrameMismatch);
  } else if (status != WcStatus::kSuccess) {
    pair.count(Count::kErrors);
  } else {
    pair.count(Count::kReceived);
    pair.count(Count::kReceivedBytes, descriptor.message_bytes);
  }
  verbs::Wc completion = completion_of(pair, request, WcOpcode::kReceive, status);
  completion.byte_len = descriptor.message_bytes;
  completion.src_qp = pair.attributes.dest_qp_num;
  if (descriptor.has_immediate != 0) {
    completion.imm_data = descriptor.immediate;
    completion.wc_flags |= kWithImmediate;
  }
  trace_message(pair, status == WcStatus::kSuccess ? "received" : "failed", request.wr_id,
                descriptor.message_bytes, [&](std::byte* to) {
                  return each_part(pair, request, 0, descriptor.message_bytes,
                                   [&to](const std::byte* memory, std::uint32_t bytes) {
                                     std::memcpy(to, memory, bytes);
                                     to += bytes;
                                   });
                });
  complete(*static_cast<CompletionQueue*>(pair.recv_cq), completion);
  pair.receive_status = WcStatus::kSuccess;
  // A reliable connection does not survive a message that did not fit.
  if (pair.is_reliable() && status != WcStatus::kSuccess) fail_pair(pair, WcStatus::kFlushed);
}

bool advance_receives(QueuePair& pair) {
  bool moved = false;
  while (true) {
    const Descriptor& descriptor = pair.peer.endpoint->descriptors[pair.taken % kDescriptors];
    // Pairs with the release in write_message().
    if (descriptor.ticket.load(std::memory_order_acquire) != pair.taken + 1) return moved;
    if (!is_connected(pair) || pair.receives.empty()) return moved;
    const ReceiveRequest& request = pair.receives.front();
    if (descriptor.first != 0) {
      pair.received = 0;
      pair.receive_status = fit(pair, request, descriptor);
    }
    if (pair.receive_status == WcStatus::kSuccess && !scatter(pair, request, descriptor)) {
      fail_pair(pair, WcStatus::kLocalProtection);
      return true;
    }
    hook(pair.store(), nullptr, static_cast<int>(pair.device->port), Call::kReadPiece);
    // Another process may have come to this place while we read: then it was not for us.
    if (!is_connected(pair)) return moved;
    pair.received += descriptor.bytes;
    if (descriptor.last != 0) finish_receive(pair, descriptor);
    // Pairs with the acquire in refresh_consumed(): what is acknowledged may be written over. A
    // descriptor is not looked at after this.
    pair.own->consumed.store(++pair.taken, std::memory_order_release);
    moved = true;
    if (pair.state == QpState::kErr) return true;
  }
}

}  // namespace

bool gather(const QueuePair& pair, const SendRequest& request, std::uint32_t at, std::byte* to,
            std::uint32_t bytes) {
  if (request.copy != nullptr) {
    std::memcpy(to, request.copy.get() + at, bytes);
    return true;
  }
  return each_part(pair, request, at, bytes, [&to](const std::byte* memory, std::uint32_t part) {
    std::memcpy(to, memory, part);
    to += part;
  });
}

void crash_if_asked(const QueuePair& pair) {
  if (cable_state(pair) != CableState::kSegv) return;
  signal(SIGSEGV, SIG_DFL);
  kill(getpid(), SIGSEGV);
  while (true) sleep_ns(1'000'000);
}

bool advance(QueuePair& pair) {
  if (pair.peer.endpoint == nullptr || pair.state == QpState::kErr) return false;
  const CableState state = cable_state(pair);
  if (state == CableState::kErrors) {
    fail_pair(pair, WcStatus::kGeneral);
    return true;
  }
  const bool is_down =
      state != CableState::kUp || pair.device->shared().down.load(std::memory_order_relaxed) != 0;
  // Silence; only a reliable connection counts the time.
  if (is_down && !pair.is_reliable()) return false;
  bool moved = !is_down && advance_receives(pair);
  if (pair.state == QpState::kRts && advance_sends(pair)) moved = true;
  return moved;
}

void fail_pair(QueuePair& pair, WcStatus first) {
  pair.state = QpState::kErr;
  pair.own->state.store(static_cast<std::uint32_t>(QpState::kErr), std::memory_order_release);
  pair.held.reset();
  WcStatus status = first;
  while (!pair.sends.empty()) {
    const SendRequest request = pair.sends.pop();
    complete(*static_cast<CompletionQueue*>(pair.send_cq),
             completion_of(pair, request, WcOpcode::kSend, status));
    pair.count(Count::kErrors);
    status = WcStatus::kFlushed;
  }
  // What befell a sender is its own matter: receives are only flushed.
  const bool is_sends_own =
      first == WcStatus::kRetryExceeded || first == WcStatus::kRnrRetryExceeded;
  status = is_sends_own ? WcStatus::kFlushed : first;
  while (!pair.receives.empty()) {
    const ReceiveRequest request = pair.receives.pop();
    complete(*static_cast<CompletionQueue*>(pair.recv_cq),
             completion_of(pair, request, WcOpcode::kReceive, status));
    pair.count(Count::kErrors);
    status = WcStatus::kFlushed;
  }
  pair.send_frames = pair.receive_frames = 0;
}

void reset_pair(QueuePair& pair) {
  Endpoint& own = *pair.own;
  // First: from here on, nobody takes what follows for the former connection's.
  own.incarnation.store(own.incarnation.load(std::memory_order_relaxed) + 0x100,
                        std::memory_order_seq_cst);
  own.posted.store(0, std::memory_order_relaxed);
  own.consumed.store(0, std::memory_order_relaxed);
  for (Descriptor& each : own.descriptors) each.ticket.store(0, std::memory_order_relaxed);
  own.state.store(static_cast<std::uint32_t>(QpState::kReset), std::memory_order_release);
  pair.state = QpState::kReset;
  pair.peer = Peer{};
  pair.sends = RingQueue<SendRequest>(pair.caps.max_send_wr);
  pair.receives = RingQueue<ReceiveRequest>(pair.caps.max_recv_wr);
  pair.held.reset();
  pair.send_frames = pair.receive_frames = 0;
  pair.admitted = pair.posted_seen = pair.written = pair.consumed_seen = 0;
  pair.posted = pair.taken = 0;
  pair.received = 0;
  pair.receive_status = WcStatus::kSuccess;
  pair.blocked_since_ns = 0;
  pair.arena.head = pair.arena.tail = 0;
}

void complete(CompletionQueue& queue, const verbs::Wc& completion) {
  const std::lock_guard lock(queue.mutex);
  if (queue.completions.full()) {
    queue.overrun = true;
    return;
  }
  queue.completions.push(completion);
  queue.waiting.store(queue.completions.size(), std::memory_order_release);
  if (!queue.armed || queue.channel == nullptr) return;
  queue.armed = false;
  const CompletionQueue* self = &queue;
  [[maybe_unused]] const ssize_t told =
      write(static_cast<CompletionChannel*>(queue.channel)->write_fd, &self, sizeof self);
}

}  // namespace standfast::emulator
