// What must not live on in the child of a fork: a child's copy of a socket hides its parent's death
// from the peers.
#pragma once

namespace standfast {

class ForkSensitive {
 public:
  ForkSensitive();
  ForkSensitive(const ForkSensitive&) = delete;
  ForkSensitive& operator=(const ForkSensitive&) = delete;
  virtual ~ForkSensitive();

  // Runs in the child, whose only thread is the one that forked. Closes descriptors, takes no lock.
  virtual void abandon() = 0;
};

}  // namespace standfast
