// A thread that runs jobs in the order in which they came, started with the first one. For
// operations that were submitted rather than called.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/base/clock.h"

namespace standfast {

class Worker {
 public:
  using Job = std::function<void()>;
  static constexpr std::size_t kJobsMax = 65536;

  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { stop(); }

  // False if kJobsMax jobs are waiting, or after stop(). Starts the thread, and throws where there
  // can be none: what is submitted afterwards will run.
  bool has_room();
  void submit(Job job);
  // Runs what is queued, then joins.
  void stop();

 private:
  void run();

  std::mutex mutex_;  // guards jobs_, stopping_ and thread_
  std::condition_variable woken_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

// Set once, by a worker; waited for by any thread.
class Completion {
 public:
  void set();
  bool is_set() const;
  // False when the time ran out or `interrupted` said so; then interrupted tells which.
  bool wait(Nanos span, bool (*interrupted)(), bool* was_interrupted);

 private:
  mutable std::mutex mutex_;  // guards set_
  std::condition_variable changed_;
  bool set_ = false;
};

}  // namespace standfast
