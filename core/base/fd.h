// Owned descriptors and the few non-blocking calls made on them.
#pragma once

#include <cstddef>
#include <utility>

#include "core/base/bytes.h"

struct iovec;

namespace standfast {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

void set_nonblocking(int fd);
// For sockets made elsewhere: non-blocking, and no SIGPIPE from send_some().
void prepare_socket(int fd);

// Writes what goes at once, and nothing if the reader is stuck. Leaves the descriptor's own mode
// alone: others may share it. For last words.
void write_without_blocking(int fd, const char* text, std::size_t bytes);

// What a non-blocking transfer came to. `code` is an errno and only set for kError.
struct Transfer {
  enum class Kind { kMoved, kWouldBlock, kEnd, kError } kind;
  std::size_t bytes = 0;
  int code = 0;
};

// A 0-byte read is the end, whatever errno held before; EINTR is tried again.
Transfer receive_some(int fd, void* to, std::size_t bytes);
Transfer receive_some(int fd, iovec* parts, int count);
// Never raises SIGPIPE.
Transfer send_some(int fd, const void* from, std::size_t bytes);
Transfer send_some(int fd, iovec* parts, int count);

}  // namespace standfast
