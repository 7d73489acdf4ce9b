// Where the threads that run operations write what they do, and the watch reads it for its beats.
// Writing costs a few plain stores per operation; nobody waits for anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "core/base/guard.h"
#include "core/base/published.h"
#include "core/control/status.h"

namespace standfast {

// One half of a rank: one writer at a time, the holder of that half.
class HalfBoard {
 public:
  void begin(const Tag& tag) {
    if constexpr (!kGuarded) return;
    tag_.publish(tag);
    running_.store(true, std::memory_order_relaxed);
  }
  void end() {
    if constexpr (kGuarded) running_.store(false, std::memory_order_relaxed);
  }

  // Only waits that have gone to sleep are told.
  void waits_for(int rank, Nanos since) { wait_.publish({rank + std::int64_t{1}, since, kNever}); }
  // It has woken to look whether the wait is over, or to serve a signal. That is still a wait,
  // unless it does not come back from there.
  void looks(int rank, Nanos since, Nanos now) {
    wait_.publish({rank + std::int64_t{1}, since, now});
  }
  void goes_on() { wait_.publish({}); }

  void read(Nanos now, Activity& seen) const {
    seen.tag = tag_.read();
    seen.running = running_.load(std::memory_order_relaxed);
    const Wait wait = wait_.read();
    if (!seen.running || wait.rank_from_1 == 0) return;
    if (now > deadline_after(kLookMax, wait.awake_since)) return;
    seen.waiting_for = static_cast<int>(wait.rank_from_1 - 1);
    seen.waited = now > wait.since ? now - wait.since : 0;
  }

 private:
  struct Wait {
    std::int64_t rank_from_1 = 0;  // 0: nobody
    Nanos since = 0;
    Nanos awake_since = kNever;
  };
  static constexpr Nanos kLookMax = 500 * kMillisecond;
  Published<Tag> tag_;
  Published<Wait> wait_;
  // Relaxed: a beat that has an operation's tag without its state, or the other way round, is
  // followed by a better one.
  std::atomic<bool> running_{false};
};

class Board {
 public:
  HalfBoard receiving;  // and collectives
  HalfBoard sending;

  // By the holder of both halves.
  void begin_collective(const Tag& tag) {
    if constexpr (!kGuarded) return;
    digest_ = digest_after(digest_, tag);
    history_.publish({tag.seq, digest_});
  }
  void end_collective(std::uint32_t number) {
    if constexpr (kGuarded) finished_.store(number, std::memory_order_relaxed);
  }

  // The program's own progress. Any thread.
  void program_beats(std::string label, std::uint64_t step, Nanos now) {
    const std::lock_guard lock(program_mutex_);
    program_ = {true, step, 0, std::move(label)};
    program_at_ = now;
  }
  void program_idles() {
    const std::lock_guard lock(program_mutex_);
    program_.busy = false;
  }

  Status read(Nanos now) const {
    Status status;
    const History history = history_.read();
    status.started = static_cast<std::uint32_t>(history.started);
    status.digest = history.digest;
    status.finished = finished_.load(std::memory_order_relaxed);
    receiving.read(now, status.halves[0]);
    sending.read(now, status.halves[1]);
    const std::lock_guard lock(program_mutex_);
    status.program = program_;
    status.program.age = now - program_at_;
    return status;
  }

 private:
  struct History {
    std::uint64_t started = 0;
    std::uint64_t digest = 0;
  };
  std::uint64_t digest_ = 0;  // the writer's own
  Published<History> history_;
  // Written by the holder of both halves, read by the watch's thread. Relaxed: only a number.
  std::atomic<std::uint32_t> finished_{0};

  mutable std::mutex program_mutex_;  // guards the program's beat
  ProgramBeat program_;
  Nanos program_at_ = 0;
};

}  // namespace standfast
