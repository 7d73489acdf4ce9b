#include "core/base/fd.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace standfast {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;  // macOS: see below
#endif
#ifdef SO_NOSIGPIPE
constexpr int kNoSignalOption = SO_NOSIGPIPE;
#else
constexpr int kNoSignalOption = -1;
#endif

// `end_on_zero`: a read of nothing is the peer's orderly end and leaves errno as it was.
Transfer outcome(ssize_t moved, bool end_on_zero) {
  if (moved > 0) return {Transfer::Kind::kMoved, static_cast<std::size_t>(moved), 0};
  if (moved == 0) {
    return {end_on_zero ? Transfer::Kind::kEnd : Transfer::Kind::kWouldBlock, 0, 0};
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {Transfer::Kind::kWouldBlock, 0, 0};
  return {Transfer::Kind::kError, 0, errno};
}

template <class Call>
ssize_t again_on_eintr(Call call) {
  ssize_t moved = call();
  while (moved < 0 && errno == EINTR) moved = call();
  return moved;
}

msghdr message_of(iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
  return message;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    throw SystemError("fcntl(O_NONBLOCK)", errno);
  }
}

void prepare_socket(int fd) {
  set_nonblocking(fd);
  const int on = 1;
  if (kNoSignalOption >= 0) setsockopt(fd, SOL_SOCKET, kNoSignalOption, &on, sizeof on);
}

void write_without_blocking(int fd, const char* text, std::size_t bytes) {
  pollfd ready = {fd, POLLOUT, 0};
  // A pipe that polls writable takes PIPE_BUF bytes at least; last words are shorter.
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, text, bytes < PIPE_BUF ? bytes : PIPE_BUF);
}

Transfer receive_some(int fd, void* to, std::size_t bytes) {
  return outcome(again_on_eintr([&] { return recv(fd, to, bytes, 0); }), true);
}

Transfer receive_some(int fd, iovec* parts, int count) {
  msghdr message = message_of(parts, count);
  return outcome(again_on_eintr([&] { return recvmsg(fd, &message, 0); }), true);
}

Transfer send_some(int fd, const void* from, std::size_t bytes) {
  return outcome(again_on_eintr([&] { return send(fd, from, bytes, kNoSignal); }), false);
}

Transfer send_some(int fd, iovec* parts, int count) {
  msghdr message = message_of(parts, count);
  return outcome(again_on_eintr([&] { return sendmsg(fd, &message, kNoSignal); }), false);
}

}  // namespace standfast
