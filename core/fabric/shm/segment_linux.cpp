// Pages of segments on Linux, where they lie in a tmpfs of limited size.
#include <fcntl.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "core/fabric/shm/segment.h"

namespace standfast {

int take_pages(int fd, std::size_t offset, std::size_t bytes) {
  int code = EINTR;
  while (code == EINTR) {
    code = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  return code;
}

bool has_room(int fd, std::uint64_t bytes) {
  struct statvfs status{};
  if (fstatvfs(fd, &status) != 0) return true;  // whoever takes the pages will see
  const bool is_limited = status.f_blocks != 0;
  return !is_limited || std::uint64_t{status.f_bavail} * status.f_frsize >= bytes;
}

bool may_lack_pages(const struct stat& status) {
  constexpr std::uint64_t kBlock = 512;  // whatever the file system's is
  return static_cast<std::uint64_t>(status.st_blocks) * kBlock < sizeof(Segment);
}

}  // namespace standfast
