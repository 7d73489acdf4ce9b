#include "core/control/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace standfast {
namespace {

// Only what opening has no effect on is opened again: a pipe or a terminal. A file would need the
// program's own position in it, and never blocks for long.
Fd reopened_stderr() {
  struct stat status{};
  if (fstat(STDERR_FILENO, &status) != 0) return Fd();
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return Fd();
  return Fd(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Log::Log(int rank, bool enabled) : rank_(rank), enabled_(enabled), own_(reopened_stderr()) {}

void Log::line(const std::string& text) const {
  if (enabled_) last_words(text);
}

void Log::last_words(const std::string& text) const {
  const std::string all = "standfast: rank " + std::to_string(rank_) + ": " + text + "\n";
  if (own_.valid()) {
    // One write of a short line is whole or not at all.
    [[maybe_unused]] const ssize_t written = write(own_.get(), all.data(), all.size());
  } else {
    write_without_blocking(STDERR_FILENO, all.data(), all.size());
  }
}

}  // namespace standfast
