// The order of operations: who passes when, side by side or alone, and what ends the waiting.
#include "core/wait/turnstile.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/core/support.h"

namespace standfast {
namespace {

using test::eventually;

constexpr Halves kAll[] = {Halves::kSending, Halves::kReceiving, Halves::kBoth};

bool has(Halves halves, Halves half) {
  return (static_cast<int>(halves) & static_cast<int>(half)) != 0;
}

Limits patient() { return {.deadline = deadline_after(now_ns(), test::kPatience)}; }

std::atomic<bool> wants_interrupt{false};
bool asks_for_interrupt() { return wants_interrupt; }

// What an operation that holds a half may do with it. Nothing here is atomic or locked: the
// turnstile is all that keeps threads apart, and ThreadSanitizer watches it do so.
struct Book {
  std::vector<std::uint32_t> sending;
  std::vector<std::uint32_t> receiving;
};

void sign(Book& book, const Turnstile::Ticket& ticket) {
  if (has(ticket.halves, Halves::kSending)) book.sending.push_back(ticket.sending);
  if (has(ticket.halves, Halves::kReceiving)) book.receiving.push_back(ticket.receiving);
}

bool counts_up(const std::vector<std::uint32_t>& tickets, std::uint32_t first) {
  for (const std::uint32_t ticket : tickets) {
    if (ticket != first++) return false;
  }
  return true;
}

// Threads that take tickets of all kinds at random and sign when it is their turn.
void crowd(Turnstile& turnstile, Book& book, int threads_count, int rounds) {
  const AbortWord abort;
  std::atomic<int> failures{0};
  test::Threads threads;
  for (int thread = 0; thread < threads_count; ++thread) {
    threads.start([&, thread] {
      std::uint32_t state = static_cast<std::uint32_t>(thread) * 7919 + 1;
      for (int round = 0; round < rounds; ++round) {
        state = state * 1664525u + 1013904223u;
        const Turnstile::Ticket ticket = turnstile.take(kAll[(state >> 16) % 3]);
        if (state >> 30 == 0) std::this_thread::yield();
        if (turnstile.enter(ticket, abort, patient()) != Outcome::kOk) ++failures;
        sign(book, ticket);
        turnstile.leave(ticket);
      }
    });
  }
  threads.join();
  CHECK(failures == 0);
}

}  // namespace

// Operations pass in the order of their tickets, one at a time per half, however many threads come.
TEST_CASE("turnstile: order under contention") {
  Turnstile turnstile;
  Book book;
  crowd(turnstile, book, 6, 500);
  CHECK(book.sending.size() > 1000);
  CHECK(book.receiving.size() > 1000);
  CHECK(counts_up(book.sending, 0));
  CHECK(counts_up(book.receiving, 0));
}

// A send and a recv run side by side; an operation of both waits for both and holds up both.
TEST_CASE("turnstile: halves") {
  Turnstile turnstile;
  const AbortWord abort;
  const Limits at_once = {.deadline = now_ns()};
  const auto passes = [&](const Turnstile::Ticket& ticket) {
    return turnstile.enter(ticket, abort, at_once) == Outcome::kOk;
  };
  const auto send = turnstile.take(Halves::kSending);
  const auto receive = turnstile.take(Halves::kReceiving);
  const auto both = turnstile.take(Halves::kBoth);
  const auto next_send = turnstile.take(Halves::kSending);
  const auto next_receive = turnstile.take(Halves::kReceiving);
  CHECK(passes(send));
  CHECK(passes(receive));
  CHECK_FALSE(passes(both));
  turnstile.leave(receive);
  CHECK_FALSE(passes(both));
  CHECK_FALSE(passes(next_receive));
  turnstile.leave(send);
  CHECK(passes(both));
  CHECK_FALSE(passes(next_send));
  turnstile.leave(both);
  CHECK(passes(next_receive));
  CHECK(passes(next_send));
}

// What ends the waiting for one's turn: a verdict, a time limit, an interruption.
TEST_CASE("turnstile: what ends the waiting") {
  Turnstile turnstile;
  AbortWord abort;
  (void)turnstile.take(Halves::kBoth);  // somebody who never leaves
  const auto ticket = turnstile.take(Halves::kBoth);
  const Nanos start = now_ns();
  CHECK(turnstile.enter(ticket, abort, {.deadline = deadline_after(start, 70 * kMillisecond)}) ==
        Outcome::kTimeout);
  CHECK(now_ns() - start >= 70 * kMillisecond);

  wants_interrupt = false;
  Outcome outcome = Outcome::kPending;
  std::atomic<bool> is_in{false};
  test::Threads threads;
  threads.start([&] {
    is_in = true;
    outcome = turnstile.enter(ticket, abort, {.interrupted = asks_for_interrupt});
  });
  CHECK(eventually([&] { return is_in.load(); }));
  wants_interrupt = true;
  threads.join();
  CHECK(outcome == Outcome::kInterrupted);

  threads.start([&] { outcome = turnstile.enter(ticket, abort, patient()); });
  abort.raise({});
  threads.join();
  CHECK(outcome == Outcome::kVerdict);
}

// Who has the turn passes even when there is a verdict or no time left: it finds out by itself.
TEST_CASE("turnstile: no wait, no reason to stop") {
  Turnstile turnstile;
  AbortWord abort;
  abort.raise({});
  const auto ticket = turnstile.take(Halves::kBoth);
  CHECK(turnstile.enter(ticket, abort, {.deadline = 0, .interrupted = asks_for_interrupt}) ==
        Outcome::kOk);
}

namespace {

SF_REVEAL(Next, Turnstile, std::atomic<std::uint64_t>, next_)
SF_REVEAL(Sending, Turnstile, std::atomic<std::uint32_t>, sending_)
SF_REVEAL(Receiving, Turnstile, std::atomic<std::uint32_t>, receiving_)

}  // namespace

// Tickets go round at 2^32 in each half by itself: neither order nor the other half is disturbed.
TEST_CASE("turnstile: the 2^32th ticket") {
  constexpr std::uint32_t kSendingStart = ~std::uint32_t{0} - 100;
  constexpr std::uint32_t kReceivingStart = ~std::uint32_t{0} - 200;
  Turnstile turnstile;
  turnstile.*reveal(Next{}) = std::uint64_t{kReceivingStart} << 32 | kSendingStart;
  turnstile.*reveal(Sending{}) = kSendingStart;
  turnstile.*reveal(Receiving{}) = kReceivingStart;
  Book book;
  crowd(turnstile, book, 4, 300);
  CHECK(book.sending.size() > 300);
  CHECK(book.receiving.size() > 300);
  CHECK(counts_up(book.sending, kSendingStart));
  CHECK(counts_up(book.receiving, kReceivingStart));
}

}  // namespace standfast
