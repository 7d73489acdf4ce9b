#include "emulator/progress.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <mutex>

#include "emulator/clock.h"
#include "emulator/events.h"
#include "emulator/transfer.h"

namespace standfast::emulator {
namespace {

constexpr std::int64_t kBusyTickNs = 1'000'000;
constexpr std::int64_t kIdleTickNs = 5'000'000;
// Where a program sleeps until it is told of a completion, this thread is all that moves.
constexpr std::int64_t kArmedTickNs = 50'000;
constexpr int kBusyTicks = 200;

struct Tick {
  bool moved = false;
  bool armed = false;
  bool is_last = false;  // no device is open any more: the next one that is gets a thread anew
};

// A pair whose program calls is left to those calls: they are quicker.
void look_at(QueuePair& pair, Tick& tick) {
  for (verbs::Cq* queue : {pair.recv_cq, pair.send_cq}) {
    if (queue->channel == nullptr) continue;
    const std::lock_guard lock(static_cast<CompletionQueue*>(queue)->mutex);
    if (static_cast<CompletionQueue*>(queue)->armed) tick.armed = true;
  }
  const std::uint64_t touched = pair.touched.load(std::memory_order_relaxed);
  const bool is_busy = touched != pair.touched_before;
  pair.touched_before = touched;
  if (is_busy && !tick.armed) {
    tick.moved = true;
    return;
  }
  const std::unique_lock lock(pair.mutex, std::try_to_lock);
  if (lock.owns_lock() && advance(pair)) tick.moved = true;
}

Tick tick_once() {
  Tick tick;
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  if (all.contexts.empty()) {
    all.progress_pid = 0;
    tick.is_last = true;
    return tick;
  }
  for (EmulatedContext* context : all.contexts) tell_port_change(*context);
  for (QueuePair* pair : all.queue_pairs) {
    if (pair->pid == getpid()) look_at(*pair, tick);
  }
  return tick;
}

void* run(void*) {
  int quiet_ticks = 0;
  while (true) {
    const Tick tick = tick_once();
    if (tick.is_last) return nullptr;
    quiet_ticks = tick.moved ? 0 : quiet_ticks + 1;
    const std::int64_t pause = quiet_ticks < kBusyTicks ? kBusyTickNs : kIdleTickNs;
    sleep_ns(tick.armed ? kArmedTickNs : pause);
  }
}

// A child gets a copy of the lock; it must not be one that the parent's thread holds.
void keep_lock_over_forks() {
  static const int once =
      pthread_atfork([] { library().mutex.lock(); }, [] { library().mutex.unlock(); },
                     [] { library().mutex.unlock(); });
  static_cast<void>(once);
}

}  // namespace

void see_to_progress() {
  keep_lock_over_forks();
  const std::lock_guard lock(library().mutex);
  if (library().progress_pid == getpid()) return;
  library().progress_pid = getpid();
  // Signals are the program's threads' matter.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, run, nullptr) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace standfast::emulator
