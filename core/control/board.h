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
  // Not put off until the operation first waits, though the stores would cost less there: it may be
  // held up before, by memory that is not there.
  void begin(const Tag& tag) {
    if constexpr (!kGuarded) return;
    publish(tag);
    running_.store(true, std::memory_order_relaxed);
  }
  void end(const Tag& tag) {
    if constexpr (!kGuarded) return;
    if (tag.kind != OpKind::kSend) finished_.store(tag.seq, std::memory_order_relaxed);
    running_.store(false, std::memory_order_relaxed);
  }

  // Only waits that have gone to sleep are told.
  void waits_for(int rank, Nanos since) { wait_.publish({rank + std::int64_t{1}, since, kNever}); }
  // It has woken to look whether the wait is over, or to serve a signal. That is still a wait,
  // unless it does not come back from there.
  void looks(int rank, Nanos since, Nanos now) {
    wait_.publish({rank + std::int64_t{1}, since, now});
  }
  void goes_on() { wait_.publish({}); }

  struct History {
    std::uint32_t started = 0;   // collectives
    std::uint32_t finished = 0;  // collectives
    std::uint64_t digest = 0;    // of all that were begun
  };
  History read(Nanos now, Activity& seen) const {
    const Record record = record_.read();
    seen.tag = record.tag;
    seen.running = running_.load(std::memory_order_relaxed);
    read_wait(now, seen);
    return {static_cast<std::uint32_t>(record.started), finished_.load(std::memory_order_relaxed),
            record.digest};
  }

 private:
  // Collectives become part of the history.
  void publish(const Tag& tag) {
    if (tag.kind == OpKind::kSend) return record_.publish_front(tag);
    digest_ = digest_after(digest_, tag);
    record_.publish({tag, tag.seq, digest_});
  }
  void read_wait(Nanos now, Activity& seen) const {
    const Wait wait = wait_.read();
    if (!seen.running || wait.rank_from_1 == 0) return;
    if (now > deadline_after(kLookMax, wait.awake_since)) return;
    seen.waiting_for = static_cast<int>(wait.rank_from_1 - 1);
    seen.waited = now > wait.since ? now - wait.since : 0;
  }

  struct Record {
    Tag tag;  // of the latest operation
    std::uint64_t started = 0;
    std::uint64_t digest = 0;
  };
  struct Wait {
    std::int64_t rank_from_1 = 0;  // 0: nobody
    Nanos since = 0;
    Nanos awake_since = kNever;
  };
  static constexpr Nanos kLookMax = 500 * kMillisecond;
  std::uint64_t digest_ = 0;  // the writer's own
  Published<Record> record_;
  Published<Wait> wait_;
  // Relaxed: a beat that has an operation's tag without its state, or the other way round, is
  // followed by a better one.
  std::atomic<bool> running_{false};
  // Relaxed: only a number.
  std::atomic<std::uint32_t> finished_{0};
};

class Board {
 public:
  HalfBoard receiving;  // and collectives
  HalfBoard sending;

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
    const HalfBoard::History history = receiving.read(now, status.halves[0]);
    status.started = history.started;
    status.finished = history.finished;
    status.digest = history.digest;
    sending.read(now, status.halves[1]);
    const std::lock_guard lock(program_mutex_);
    status.program = program_;
    status.program.age = now - program_at_;
    return status;
  }

 private:
  mutable std::mutex program_mutex_;  // guards the program's beat
  ProgramBeat program_;
  Nanos program_at_ = 0;
};

}  // namespace standfast
