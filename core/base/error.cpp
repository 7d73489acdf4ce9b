#include "core/base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace standfast {
namespace {

struct Name {
  int code;
  const char* text;
};

// strerrorname_np is glibc's alone; these are the ones that sockets, files and memory give.
constexpr Name kNames[] = {
    {EACCES, "EACCES"},
    {EADDRINUSE, "EADDRINUSE"},
    {EAGAIN, "EAGAIN"},
    {EBADF, "EBADF"},
    {EBUSY, "EBUSY"},
    {ECONNABORTED, "ECONNABORTED"},
    {ECONNREFUSED, "ECONNREFUSED"},
    {ECONNRESET, "ECONNRESET"},
    {EEXIST, "EEXIST"},
    {EFAULT, "EFAULT"},
    {EHOSTUNREACH, "EHOSTUNREACH"},
    {EINTR, "EINTR"},
    {EINVAL, "EINVAL"},
    {EIO, "EIO"},
    {EMFILE, "EMFILE"},
    {EMSGSIZE, "EMSGSIZE"},
    {ENETDOWN, "ENETDOWN"},
    {ENETUNREACH, "ENETUNREACH"},
    {ENFILE, "ENFILE"},
    {ENOBUFS, "ENOBUFS"},
    {ENOENT, "ENOENT"},
    {ENOMEM, "ENOMEM"},
    {ENOSPC, "ENOSPC"},
    {ENOSYS, "ENOSYS"},
    {ENOTCONN, "ENOTCONN"},
    {ENOTSOCK, "ENOTSOCK"},
    {EPERM, "EPERM"},
    {EPIPE, "EPIPE"},
    {ESRCH, "ESRCH"},
    {ETIMEDOUT, "ETIMEDOUT"},
};

}  // namespace

std::string errno_text(int code) {
  const std::string words = std::generic_category().message(code);
  for (const Name& name : kNames) {
    if (name.code == code) return std::string(name.text) + " (" + words + ")";
  }
  return "errno " + std::to_string(code) + " (" + words + ")";
}

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "standfast: internal error, please report: %s at %s:%d\n", condition, file,
               line);
  std::abort();
}

}  // namespace standfast
