#include "core/fabric/shm/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <random>

#include "core/base/bytes.h"
#include "core/base/error.h"

namespace standfast {
namespace {

constexpr char kPrefix[] = "/sf-";
// Where Linux shows the names; elsewhere there is no way to list them.
constexpr char kDirectory[] = "/dev/shm";

std::string random_name() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device device;
  std::string key;
  for (int i = 0; i < 12; ++i) key += kDigits[device() % 16];
  return segment_name(getpid(), key);
}

// The maker's pid in "sf-<pid>-<random>", or 0.
pid_t maker_of(const std::string& file) {
  const std::string prefix = kPrefix + 1;
  if (file.compare(0, prefix.size(), prefix) != 0) return 0;
  return static_cast<pid_t>(std::strtol(file.c_str() + prefix.size(), nullptr, 10));
}

bool is_gone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

// The pages that hold both lanes' heads: all that a pair needs before it has sent a long frame.
constexpr std::size_t kHeadBytes = offsetof(Lane, payloads);

// Of all pairs of a host.
std::uint64_t segments_bytes(int ranks_here) {
  const auto n = static_cast<std::uint64_t>(ranks_here);
  return n * (n - 1) / 2 * sizeof(Segment);
}

int take_pages_at_first(int fd, int ranks_here) {
  if (takes_all_pages(ranks_here)) return take_pages(fd, 0, sizeof(Segment));
  if (!has_room(fd, segments_bytes(ranks_here))) return ENOSPC;
  const int code = take_pages(fd, 0, kHeadBytes);
  return code != 0 ? code : take_pages(fd, sizeof(Lane), kHeadBytes);
}

void give_size(int fd, const std::string& name, int ranks_here) {
  int code = ftruncate(fd, sizeof(Segment)) == 0 ? 0 : errno;
  if (code == 0) code = take_pages_at_first(fd, ranks_here);
  if (code == 0) return;
  shm_unlink(name.c_str());
  throw SystemError("shared memory of " + std::to_string(sizeof(Segment)) + " bytes", code);
}

}  // namespace

std::string segment_name(int maker, const std::string& key) {
  return kPrefix + std::to_string(maker) + "-" + key;
}

bool takes_all_pages(int ranks_here) { return ranks_here <= kRanksWithAllPages; }

NamedSegment make_segment(int ranks_here) {
  for (;;) {
    const std::string name = random_name();
    Fd fd(shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (!fd.valid() && errno == EEXIST) continue;
    if (!fd.valid()) throw SystemError("shm_open(" + name + ")", errno);
    give_size(fd.get(), name, ranks_here);
    return {name, std::move(fd)};
  }
}

Fd attach_segment(const std::string& name) {
  Fd fd(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd.valid()) throw SystemError("shm_open(" + name + ")", errno);
  struct stat status{};
  if (fstat(fd.get(), &status) != 0) throw SystemError("fstat(" + name + ")", errno);
  if (static_cast<std::size_t>(status.st_size) < sizeof(Segment)) {
    throw SystemError("segment " + name + " is too small", EINVAL);
  }
  return fd;
}

void unlink_segment(const std::string& name) {
  if (shm_unlink(name.c_str()) != 0 && errno != ENOENT) {
    throw SystemError("shm_unlink(" + name + ")", errno);
  }
}

std::vector<std::string> sweep_segments() {
  std::vector<std::string> removed;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory, ignored)) {
    const std::string file = entry.path().filename().string();
    const pid_t maker = maker_of(file);
    if (maker <= 0 || !is_gone(maker)) continue;
    if (shm_unlink(("/" + file).c_str()) == 0) removed.push_back("/" + file);
  }
  return removed;
}

Mapping::Mapping(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0) throw SystemError("fstat of a shared segment", errno);
  if (may_lack_pages(status)) {
    fd_ = Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!fd_.valid()) throw SystemError("dup of a shared segment", errno);
  }
  void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw SystemError("mmap of a shared segment", errno);
  segment_ = static_cast<Segment*>(memory);
}

Mapping::~Mapping() { munmap(segment_, sizeof(Segment)); }

int Mapping::take(const std::byte* at, std::size_t bytes) const {
  if (!fd_.valid()) return 0;
  const std::ptrdiff_t offset = at - as_bytes(segment_);
  return take_pages(fd_.get(), static_cast<std::size_t>(offset), bytes);
}

}  // namespace standfast
