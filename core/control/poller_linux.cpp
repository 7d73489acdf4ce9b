// epoll, and pidfd for processes.
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "core/base/error.h"
#include "core/base/fd.h"
#include "core/control/poller.h"

namespace standfast {

struct Poller::State {
  Fd epoll;
  std::map<int, Fd> processes;  // pid -> pidfd
};

namespace {

void control(int epoll, int what, int fd, int token, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = token;
  if (epoll_ctl(epoll, what, fd, &event) != 0) throw SystemError("epoll_ctl", errno);
}

}  // namespace

Poller::Poller() : state_(std::make_unique<State>()) {
  state_->epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!state_->epoll.valid()) throw SystemError("epoll_create1", errno);
}

Poller::~Poller() = default;

void Poller::add(int fd, int token) {
  control(state_->epoll.get(), EPOLL_CTL_ADD, fd, token, EPOLLIN);
}

void Poller::want_write(int fd, int token, bool wanted) {
  epoll_event event{};
  event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = token;
  // It fails for a descriptor that somebody closed, which the watch finds out at its next review.
  epoll_ctl(state_->epoll.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) {
  epoll_event unused{};
  epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, &unused);
}

bool Poller::add_process(int pid, int token) {
  Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return false;
  add(pidfd.get(), token);
  state_->processes[pid] = std::move(pidfd);
  return true;
}

void Poller::remove_process(int pid) {
  const auto found = state_->processes.find(pid);
  if (found == state_->processes.end()) return;
  remove(found->second.get());
  state_->processes.erase(found);
}

int Poller::wait(Ready* ready, int max, Nanos span) {
  constexpr int kMax = 64;
  epoll_event events[kMax];
  const Nanos bounded = std::clamp<Nanos>(span, 0, 3600 * kSecond);
  const int span_ms = static_cast<int>((bounded + kMillisecond - 1) / kMillisecond);
  const int count = epoll_wait(state_->epoll.get(), events, std::min(max, kMax), span_ms);
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    ready[i].token = events[i].data.fd;
    ready[i].readable = (events[i].events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
    ready[i].writable = (events[i].events & EPOLLOUT) != 0;
  }
  return std::max(count, 0);
}

int Poller::fd() const { return state_->epoll.get(); }

}  // namespace standfast
