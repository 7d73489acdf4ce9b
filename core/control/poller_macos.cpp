// kqueue, with EVFILT_PROC for processes. Compiles on macOS and the BSDs; not yet run on hardware.
#include <sys/event.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "core/base/error.h"
#include "core/base/fd.h"
#include "core/control/poller.h"

namespace standfast {

struct Poller::State {
  Fd kqueue;
};

namespace {

bool change(int queue, std::uintptr_t ident, std::int16_t filter, std::uint16_t flags,
            std::uint32_t filter_flags, int token) {
  struct kevent event;
  EV_SET(&event, ident, filter, flags, filter_flags, 0,
         reinterpret_cast<void*>(static_cast<std::intptr_t>(token)));
  return kevent(queue, &event, 1, nullptr, 0, nullptr) == 0;
}

}  // namespace

Poller::Poller() : state_(std::make_unique<State>()) {
  state_->kqueue = Fd(::kqueue());
  if (!state_->kqueue.valid()) throw SystemError("kqueue", errno);
}

Poller::~Poller() = default;

void Poller::add(int fd, int token) {
  if (!change(state_->kqueue.get(), static_cast<std::uintptr_t>(fd), EVFILT_READ, EV_ADD, 0,
              token)) {
    throw SystemError("kevent(EVFILT_READ)", errno);
  }
}

void Poller::want_write(int fd, int token, bool wanted) {
  const std::uint16_t flags = wanted ? EV_ADD : EV_DELETE;
  // It fails for a descriptor that somebody closed, which the watch finds out at its next review.
  change(state_->kqueue.get(), static_cast<std::uintptr_t>(fd), EVFILT_WRITE, flags, 0, token);
}

void Poller::remove(int fd) {
  change(state_->kqueue.get(), static_cast<std::uintptr_t>(fd), EVFILT_READ, EV_DELETE, 0, 0);
  change(state_->kqueue.get(), static_cast<std::uintptr_t>(fd), EVFILT_WRITE, EV_DELETE, 0, 0);
}

bool Poller::add_process(int pid, int token) {
  return change(state_->kqueue.get(), static_cast<std::uintptr_t>(pid), EVFILT_PROC,
                EV_ADD | EV_ONESHOT, NOTE_EXIT, token);
}

void Poller::remove_process(int pid) {
  change(state_->kqueue.get(), static_cast<std::uintptr_t>(pid), EVFILT_PROC, EV_DELETE, 0, 0);
}

int Poller::wait(Ready* ready, int max, Nanos span) {
  constexpr int kMax = 64;
  struct kevent events[kMax];
  const Nanos bounded = std::clamp<Nanos>(span, 0, 3600 * kSecond);
  const timespec time = {static_cast<time_t>(bounded / kSecond),
                         static_cast<long>(bounded % kSecond)};
  const int count = kevent(state_->kqueue.get(), nullptr, 0, events, std::min(max, kMax), &time);
  if (count < 0 && errno != EINTR) throw SystemError("kevent", errno);
  for (int i = 0; i < count; ++i) {
    ready[i].token = static_cast<int>(reinterpret_cast<std::intptr_t>(events[i].udata));
    ready[i].readable = events[i].filter != EVFILT_WRITE;
    ready[i].writable = events[i].filter == EVFILT_WRITE;
  }
  return std::max(count, 0);
}

int Poller::fd() const { return state_->kqueue.get(); }

}  // namespace standfast
