// A thread that does the same thing every so often, until it is stopped. For what may take a system
// call, or longer, and must therefore be done neither on the data path nor by the watch.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/base/clock.h"

namespace standfast {

class Patrol {
 public:
  Patrol() = default;
  Patrol(const Patrol&) = delete;
  Patrol& operator=(const Patrol&) = delete;
  ~Patrol() { stop(); }

  // Once. Throws where there can be no thread.
  void start(Nanos every, std::function<void()> round);
  // Waits for a round that is under way.
  void stop();

 private:
  void run(Nanos every, const std::function<void()>& round);

  std::mutex mutex_;  // guards stopping_
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace standfast
