#include "core/base/fork.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace standfast {
namespace {

std::mutex mutex;  // guards `living`; held across fork() so that the child finds it whole
std::vector<ForkSensitive*> living;

void before_fork() { mutex.lock(); }

void in_parent() { mutex.unlock(); }

void in_child() {
  for (ForkSensitive* object : living) object->abandon();
  living.clear();
  mutex.unlock();
}

}  // namespace

ForkSensitive::ForkSensitive() {
  static const int installed = pthread_atfork(before_fork, in_parent, in_child);
  (void)installed;
  const std::lock_guard lock(mutex);
  living.push_back(this);
}

ForkSensitive::~ForkSensitive() {
  const std::lock_guard lock(mutex);
  std::erase(living, this);
}

}  // namespace standfast
