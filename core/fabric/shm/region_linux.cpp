// Regions on Linux: a memfd, which has no name that could outlive its makers. Another process
// reaches it by way of /proc, where the kernel lets it if it could read the maker's memory as well.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "core/fabric/shm/arena.h"

namespace standfast {

Fd make_region(std::size_t bytes) {
  Fd fd(memfd_create("standfast", MFD_CLOEXEC));
  if (fd.valid() && ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fd.reset();
  return fd;
}

Fd open_region(const RegionName& name) {
  const std::string path = "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.fd);
  return Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

bool commit_pages(int fd, std::byte*, std::size_t offset, std::size_t bytes) {
  return posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
}

void drop_pages(int fd, std::byte*, std::size_t offset, std::size_t bytes) {
  // Cannot fail for a memfd that is not sealed.
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
}

}  // namespace standfast
