#include "emulator/post_poll.h"

#include <algorithm>
#include <cstring>

#include "emulator/clock.h"
#include "emulator/exports.h"
#include "emulator/nap.h"
#include "emulator/owner.h"
#include "emulator/transfer.h"

namespace standfast::emulator {
namespace {

using verbs::QpState;

// How often a thread finds nothing before it naps, about 40 us: longer than a nap, else two that
// wait for each other would nap in turn for ever; short where there are more ranks than cores.
constexpr int kEmptyPollsBeforeNap = 1000;

int hook_at(const QueuePair& pair, Call call) {
  return hook(pair.store(), nullptr, static_cast<int>(pair.device->port), call);
}

// Apple's posts return the negative number.
int no_room(const QueuePair& pair) {
  const bool is_apple = pair.store().header().profile == Profile::kApple;
  return is_apple ? -darwin::kNoMemory : darwin::kNoMemory;
}

bool take_gather_list(const QueuePair& pair, Request& request, const verbs::Sge* list,
                      int entries) {
  const auto most =
      std::min<std::uint32_t>(kGatherMax, pair.store().header().limits.gather_entries);
  if (entries < 0 || static_cast<std::uint32_t>(entries) > most) return false;
  request.entries = static_cast<std::uint32_t>(entries);
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < request.entries; ++i) {
    request.gather[i] = list[i];
    bytes += list[i].length;
  }
  request.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, UINT32_MAX));
  return true;
}

// The window counts frames, beside the requests; a message alone may be longer than the window.
bool fits_window(const QueuePair& pair, std::uint64_t outstanding, std::uint32_t frames) {
  const Limits& limits = pair.store().header().limits;
  if (frames > limits.message_frames) return false;
  return outstanding == 0 || outstanding + frames <= limits.window_frames;
}

void apply_fate(QueuePair& pair, SendRequest& request) {
  const Fate fate = fate_of_message(pair.store(), pair.device->port);
  request.lose = fate.lose;
  request.duplicate = fate.duplicate;
  request.reorder = fate.reorder;
  if (fate.corrupt_byte) {
    request.corrupt_byte = *fate.corrupt_byte;
    pair.count(Count::kCorrupted);
  }
  if (fate.bytes_left && *fate.bytes_left < request.bytes) {
    request.bytes = static_cast<std::uint32_t>(std::max<std::int64_t>(*fate.bytes_left, 0));
    pair.count(Count::kTruncated);
  }
  if (fate.delay_ns > 0) {
    request.not_before_ns = now_ns() + fate.delay_ns;
    pair.count(Count::kDelayed);
  }
}

// IBV_SEND_INLINE: the program may write into its memory, which need not be registered, at once.
bool take_inline(const QueuePair& pair, SendRequest& request) {
  if (request.bytes > pair.caps.max_inline_data) return false;
  request.copy = std::make_unique<std::byte[]>(std::max(request.bytes, 1u));
  std::byte* to = request.copy.get();
  for (std::uint32_t i = 0; i < request.entries; ++i) {
    std::memcpy(to, reinterpret_cast<const void*>(request.gather[i].addr),
                request.gather[i].length);
    to += request.gather[i].length;
  }
  return true;
}

int post_one_send(QueuePair& pair, const verbs::SendWr& from) {
  using verbs::SendOpcode;
  if (pair.state != QpState::kRts && pair.state != QpState::kErr) return darwin::kInvalid;
  if (from.opcode != SendOpcode::kSend && from.opcode != SendOpcode::kSendWithImm) {
    return darwin::kInvalid;
  }
  SendRequest request;
  request.wr_id = from.wr_id;
  if (!take_gather_list(pair, request, from.sg_list, from.num_sge)) return darwin::kInvalid;
  request.frames = frames_of(request.bytes);
  if (pair.sends.full() || !fits_window(pair, pair.send_frames, request.frames)) {
    return no_room(pair);
  }
  request.signaled = pair.signal_all || (from.send_flags & verbs::kSendSignaled) != 0;
  request.has_immediate = from.opcode == SendOpcode::kSendWithImm;
  request.immediate = from.imm_data;
  if ((from.send_flags & verbs::kSendInline) != 0 && !take_inline(pair, request)) {
    return darwin::kInvalid;
  }
  if (has_rules(pair.store())) apply_fate(pair, request);
  pair.send_frames += request.frames;
  pair.sends.push(std::move(request));
  return 0;
}

int post_one_receive(QueuePair& pair, const verbs::RecvWr& from) {
  const bool is_early = pair.state == QpState::kInit || pair.state == QpState::kRtr;
  if (pair.state == QpState::kReset ||
      (is_early && pair.store().header().early_receives_refused != 0)) {
    return darwin::kInvalid;
  }
  ReceiveRequest request;
  request.wr_id = from.wr_id;
  if (!take_gather_list(pair, request, from.sg_list, from.num_sge)) return darwin::kInvalid;
  request.frames = frames_of(request.bytes);
  if (pair.receives.full() || !fits_window(pair, pair.receive_frames, request.frames)) {
    return no_room(pair);
  }
  pair.receive_frames += request.frames;
  pair.receives.push(request);
  ++pair.posted;
  return 0;
}

// What is posted to a pair in the error state comes back as flushed.
void flush_if_failed(QueuePair& pair) {
  if (pair.state == QpState::kErr) fail_pair(pair, verbs::WcStatus::kFlushed);
}

void advance_members(CompletionQueue& queue) {
  const std::lock_guard lock(queue.members_mutex);
  for (QueuePair* pair : queue.members) {
    pair->touched.fetch_add(1, std::memory_order_relaxed);
    crash_if_asked(*pair);
    const std::lock_guard pair_lock(pair->mutex);
    advance(*pair);
  }
}

int take_completions(CompletionQueue& queue, int most, verbs::Wc* completions) {
  const std::lock_guard lock(queue.mutex);
  // An overrun queue is lost, and says so for ever.
  if (queue.overrun && queue.completions.empty()) return -1;
  int taken = 0;
  while (taken < most && !queue.completions.empty()) completions[taken++] = queue.completions.pop();
  queue.waiting.store(queue.completions.size(), std::memory_order_relaxed);
  return taken;
}

void nap_if_idle(const CompletionQueue& queue, bool is_empty) {
  thread_local int empty_polls = 0;
  if (!is_empty) {
    empty_polls = 0;
    return;
  }
  if (++empty_polls < kEmptyPollsBeforeNap) return;
  const Header& header = static_cast<EmulatedContext*>(queue.context)->emulated->store().header();
  if (static_cast<Idle>(header.idle.load(std::memory_order_relaxed)) == Idle::kNap) nap();
}

}  // namespace

int post_sends(verbs::Qp* base, verbs::SendWr* request, verbs::SendWr** bad_request) {
  auto& pair = *static_cast<QueuePair*>(base);
  crash_if_asked(pair);
  int number = hook_at(pair, Call::kPostSend);
  pair.touched.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(pair.mutex);
  while (number == 0 && request != nullptr) {
    number = post_one_send(pair, *request);
    if (number == 0) request = request->next;
  }
  if (number != 0 && bad_request != nullptr) *bad_request = request;
  flush_if_failed(pair);
  advance(pair);
  return number;
}

int post_receives(verbs::Qp* base, verbs::RecvWr* request, verbs::RecvWr** bad_request) {
  auto& pair = *static_cast<QueuePair*>(base);
  crash_if_asked(pair);
  int number = hook_at(pair, Call::kPostRecv);
  pair.touched.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(pair.mutex);
  while (number == 0 && request != nullptr) {
    number = post_one_receive(pair, *request);
    if (number == 0) request = request->next;
  }
  if (number != 0 && bad_request != nullptr) *bad_request = request;
  // Pairs with the acquire in has_receive().
  pair.own->posted.store(pair.posted, std::memory_order_release);
  flush_if_failed(pair);
  advance(pair);
  return number;
}

int poll_completions(verbs::Cq* base, int entries_max, verbs::Wc* completions) {
  auto& queue = *static_cast<CompletionQueue*>(base);
  const EmulatedDevice& device = *static_cast<EmulatedContext*>(queue.context)->emulated;
  const int number = hook(device.store(), nullptr, static_cast<int>(device.port), Call::kPollCq);
  if (number != 0) return -1;
  if (queue.waiting.load(std::memory_order_acquire) == 0) advance_members(queue);
  const bool is_empty = queue.waiting.load(std::memory_order_acquire) == 0;
  const int taken =
      is_empty && !queue.overrun ? 0 : take_completions(queue, entries_max, completions);
  nap_if_idle(queue, taken == 0);
  return taken;
}

int request_notification(verbs::Cq* base, int) {
  auto& queue = *static_cast<CompletionQueue*>(base);
  const std::lock_guard lock(queue.mutex);
  queue.armed = true;
  return 0;
}

}  // namespace standfast::emulator
