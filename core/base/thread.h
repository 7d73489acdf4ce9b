// Threads of ours: no signal is delivered to them, handlers run where the program expects them. But
// what a thread does itself - a bad address, a trap - is reported from there, by whoever reports.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace standfast {

// The caller's own signals come back to it even if there can be no thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

template <class Body>
std::thread deaf_thread(Body body) {
  const SignalsBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace standfast
