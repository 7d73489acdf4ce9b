// Readiness of descriptors and the end of processes, as one queue. Used by the watch's thread only.
// poller_linux.cpp: epoll and pidfd. poller_macos.cpp: kqueue.
#pragma once

#include <memory>

#include "core/base/clock.h"

namespace standfast {

struct Ready {
  int token = 0;
  bool readable = false;
  bool writable = false;
};

class Poller {
 public:
  Poller();  // throws SystemError
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  void add(int fd, int token);
  void want_write(int fd, int token, bool wanted);
  void remove(int fd);
  // The token is ready once this process has ended. False if it can't be watched.
  bool add_process(int pid, int token);
  void remove_process(int pid);

  // How many of `ready` were filled; 0 when the time ran out or a signal came.
  int wait(Ready* ready, int max, Nanos span);

  // For the child of a fork: the descriptor to close.
  int fd() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace standfast
