#include "core/wait/turnstile.h"

#include <chrono>

namespace standfast {
namespace {

constexpr std::uint64_t kOneSending = 1;
constexpr std::uint64_t kOneReceiving = std::uint64_t{1} << 32;
constexpr std::chrono::milliseconds kNap{50};

bool has(Halves halves, Halves half) {
  return (static_cast<int>(halves) & static_cast<int>(half)) != 0;
}

}  // namespace

Turnstile::Ticket Turnstile::take(Halves halves) {
  const std::uint64_t step = (has(halves, Halves::kSending) ? kOneSending : 0) +
                             (has(halves, Halves::kReceiving) ? kOneReceiving : 0);
  // The sending count must not carry into the receiving one: after 2^32 sends it would. A
  // compare-and-swap keeps them apart at the same cost.
  std::uint64_t now = next_.load(std::memory_order_relaxed);
  std::uint64_t then;
  do {
    const auto sending = static_cast<std::uint32_t>(now + (step & 0xffffffff));
    const auto receiving = static_cast<std::uint32_t>((now >> 32) + (step >> 32));
    then = std::uint64_t{receiving} << 32 | sending;
  } while (!next_.compare_exchange_weak(now, then, std::memory_order_relaxed));
  return {halves, static_cast<std::uint32_t>(now), static_cast<std::uint32_t>(now >> 32)};
}

bool Turnstile::is_turn(const Ticket& ticket) const {
  return (!has(ticket.halves, Halves::kSending) || sending_.load() == ticket.sending) &&
         (!has(ticket.halves, Halves::kReceiving) || receiving_.load() == ticket.receiving);
}

Outcome Turnstile::enter(const Ticket& ticket, const AbortWord& abort, const Limits& limits) {
  if (is_turn(ticket)) [[likely]]
    return Outcome::kOk;
  if (limits.hold != nullptr) limits.hold->give_back();
  sleepers_.fetch_add(1);
  Outcome outcome = Outcome::kOk;
  std::unique_lock lock(mutex_);
  while (!is_turn(ticket)) {
    const Nanos now = now_ns();
    if (abort.verdict() != nullptr) outcome = Outcome::kVerdict;
    if (now >= limits.deadline) outcome = Outcome::kTimeout;
    if (outcome != Outcome::kOk) break;
    turned_.wait_for(lock, kNap);
    lock.unlock();
    const bool interrupted = limits.interrupted != nullptr && limits.interrupted();
    lock.lock();
    if (interrupted) {
      outcome = Outcome::kInterrupted;
      break;
    }
  }
  sleepers_.fetch_sub(1);
  return outcome;
}

void Turnstile::leave(const Ticket& ticket) {
  if (has(ticket.halves, Halves::kSending)) sending_.store(ticket.sending + 1);
  if (has(ticket.halves, Halves::kReceiving)) receiving_.store(ticket.receiving + 1);
  if (sleepers_.load() == 0) [[likely]]
    return;
  const std::lock_guard lock(mutex_);
  turned_.notify_all();
}

}  // namespace standfast
