#include "core/base/fork.h"

#include <pthread.h>

#include <algorithm>
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

std::mutex& installed() {
  static const int done = pthread_atfork(before_fork, in_parent, in_child);
  (void)done;
  return mutex;
}

}  // namespace

NoFork::NoFork() : lock_(installed()) {}

void ForkSensitive::enlist(const NoFork&) { living.push_back(this); }

void ForkSensitive::resign(const NoFork&) { std::erase(living, this); }

}  // namespace standfast
