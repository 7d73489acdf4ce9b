// What must not live on in the child of a fork: a child's copy of a socket hides its parent's death
// from the peers.
#pragma once

#include <mutex>

namespace standfast {

// While one lives, no thread of the process gets through a fork: for making and taking apart what a
// child would have to close.
class NoFork {
 public:
  NoFork();

 private:
  const std::lock_guard<std::mutex> lock_;
};

class ForkSensitive {
 public:
  ForkSensitive() = default;
  ForkSensitive(const ForkSensitive&) = delete;
  ForkSensitive& operator=(const ForkSensitive&) = delete;
  virtual ~ForkSensitive() = default;

  // Runs in the child, whose only thread is the one that forked. Closes descriptors, takes no lock,
  // and relies on nothing that another thread may have been changing.
  virtual void abandon() = 0;

 protected:
  // Between these it is whole, and a child abandons it.
  void enlist(const NoFork& no_fork);
  void resign(const NoFork& no_fork);
};

}  // namespace standfast
