#include "core/wait/worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "core/base/thread.h"

namespace standfast {
namespace {

constexpr Nanos kNap = 50 * kMillisecond;

}  // namespace

bool Worker::has_room() {
  const std::lock_guard lock(mutex_);
  if (stopping_ || jobs_.size() >= kJobsMax) return false;
  if (!thread_.joinable()) thread_ = deaf_thread([this] { run(); });
  return true;
}

void Worker::submit(Job job) {
  const std::lock_guard lock(mutex_);
  SF_CHECK(thread_.joinable());
  jobs_.push_back(std::move(job));
  woken_.notify_one();
}

void Worker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    woken_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

void Completion::set() {
  const std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

bool Completion::is_set() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

bool Completion::wait(Nanos span, bool (*interrupted)(), bool* was_interrupted) {
  const Nanos end = deadline_after(now_ns(), span);
  std::unique_lock lock(mutex_);
  while (!set_) {
    const Nanos now = now_ns();
    if (now >= end) return false;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(kNap, end - now)));
    if (set_ || interrupted == nullptr) continue;
    lock.unlock();
    *was_interrupted = interrupted();
    lock.lock();
    if (*was_interrupted) return set_;
  }
  return true;
}

}  // namespace standfast
