#include "core/wait/patrol.h"

#include <chrono>
#include <utility>

#include "core/base/thread.h"

namespace standfast {

void Patrol::start(Nanos every, std::function<void()> round) {
  thread_ = deaf_thread([this, every, round = std::move(round)] { run(every, round); });
}

void Patrol::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Patrol::run(Nanos every, const std::function<void()>& round) {
  std::unique_lock lock(mutex_);
  const std::chrono::nanoseconds span(every);
  while (!stopped_.wait_for(lock, span, [this] { return stopping_; })) {
    lock.unlock();
    round();
    lock.lock();
  }
}

}  // namespace standfast
