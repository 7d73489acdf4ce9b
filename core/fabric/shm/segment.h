// Making, finding and removing the named memory of a pair. Called by rendezvous through bind/,
// before any operation.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/fabric/shm/lane.h"

namespace standfast {

struct NamedSegment {
  std::string name;
  Fd fd;
};

// "/sf-<maker's pid>-<key>", by which a sweep finds it. Short, since macOS allows 31 characters:
// the key is 12 hex digits.
std::string segment_name(int maker, const std::string& key);

// Up to so many ranks of a host, a segment has all its pages from the beginning: a full /dev/shm is
// an error there, while the group forms. Of more ranks the pairs are so many (2016 of 64, that is
// 4.3 GB) that a pair takes the pages of a payload when it first needs them.
inline constexpr int kRanksWithAllPages = 16;
bool takes_all_pages(int ranks_here);

// A segment of sizeof(Segment) zero bytes, mode 0600, under a random name that tells its maker's
// pid, for a pair of the `ranks_here` ranks of this host. Throws SystemError, also where there is
// no room for the segments of all those pairs.
NamedSegment make_segment(int ranks_here = 2);
Fd attach_segment(const std::string& name);
// A name that is gone already is no error: both ends remove it.
void unlink_segment(const std::string& name);
// Removes segments whose maker is gone: it was killed between making one and both ends holding it.
// Returns the names.
std::vector<std::string> sweep_segments();

// segment_linux.cpp, segment_macos.cpp.
//
// Takes pages of a segment now. 0, or an errno.
int take_pages(int fd, std::size_t offset, std::size_t bytes);
// False: its file system has no room for so many bytes.
bool has_room(int fd, std::uint64_t bytes);
// Whether some pages of a segment are still to be taken.
bool may_lack_pages(const struct stat& status);

// The segment in this process's memory.
class Mapping {
 public:
  explicit Mapping(int fd);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  Segment& segment() const { return *segment_; }
  // Takes the pages of a part of it, so that their lack is an error here and no signal later.
  // 0, or an errno. Costs a system call, but nothing where the segment has all its pages.
  int take(const std::byte* at, std::size_t bytes) const;

 private:
  Fd fd_;  // invalid: it has all pages
  Segment* segment_;
};

}  // namespace standfast
