#include "core/control/sigterm.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>

namespace standfast::sigterm {
namespace {

constexpr int kBellsMax = 64;
constexpr int kFree = -1;

std::mutex mutex;  // guards installing, enlisting and leaving; never taken by the handler
// The handler reads these; enlist/resign write them. Sequentially consistent: rare, and simplest.
std::atomic<int> bells[kBellsMax];
std::atomic<bool> came{false};
bool initialised = false;
int enlisted = 0;

void handle(int) {
  const int errno_before = errno;  // belongs to whatever was interrupted
  came.store(true);
  for (const auto& bell : bells) {
    const char letter = 't';
    const int fd = bell.load();
    if (fd != kFree && write(fd, &letter, 1) < 0) continue;  // full: it will wake anyway
  }
  errno = errno_before;
}

bool install() {
  struct sigaction current{};
  if (sigaction(SIGTERM, nullptr, &current) != 0) return false;
  if (current.sa_handler == handle) return true;
  if (current.sa_handler != SIG_DFL) return false;
  struct sigaction ours{};
  ours.sa_handler = handle;
  ours.sa_flags = static_cast<int>(SA_RESETHAND);  // the second one is final
  sigemptyset(&ours.sa_mask);
  return sigaction(SIGTERM, &ours, nullptr) == 0;
}

void restore() {
  struct sigaction current{};
  if (sigaction(SIGTERM, nullptr, &current) == 0 && current.sa_handler == handle) {
    signal(SIGTERM, SIG_DFL);
  }
}

bool leave(int bell_fd) {
  for (auto& bell : bells) {
    if (bell.load() != bell_fd) continue;
    bell.store(kFree);
    return --enlisted == 0;
  }
  return false;
}

}  // namespace

bool enlist(int bell_fd) {
  const std::lock_guard lock(mutex);
  if (!initialised) {
    for (auto& bell : bells) bell.store(kFree);
    initialised = true;
  }
  if (!install()) return false;
  for (auto& bell : bells) {
    if (bell.load() != kFree) continue;
    bell.store(bell_fd);
    ++enlisted;
    return true;
  }
  return false;
}

bool pending() { return came.load(); }

void served(int bell_fd) {
  const std::lock_guard lock(mutex);
  if (leave(bell_fd)) kill(getpid(), SIGTERM);  // SA_RESETHAND left the default in place
}

void resign(int bell_fd) {
  const std::lock_guard lock(mutex);
  if (!leave(bell_fd)) return;
  if (came.load()) {
    kill(getpid(), SIGTERM);
  } else {
    restore();
  }
}

void forget() {
  restore();
  new (&mutex) std::mutex;  // it may be held by a thread that does not exist here
  for (auto& bell : bells) bell.store(kFree);
  enlisted = 0;
  came.store(false);
}

}  // namespace standfast::sigterm
