#include "core/base/bell.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace standfast {

Bell::Bell() {
  int ends[2];
  if (pipe(ends) != 0) throw SystemError("pipe", errno);
  read_ = Fd(ends[0]);
  write_ = Fd(ends[1]);
  for (const int fd : ends) {
    set_nonblocking(fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

void Bell::ring() const {
  const char letter = 'r';
  while (write(write_.get(), &letter, 1) < 0 && errno == EINTR) {
  }
}

void Bell::silence() const {
  char letters[64];
  for (;;) {
    const ssize_t got = read(read_.get(), letters, sizeof letters);
    if (got < 0 && errno == EINTR) continue;
    if (got < static_cast<ssize_t>(sizeof letters)) return;
  }
}

}  // namespace standfast
