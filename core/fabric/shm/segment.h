// Making, finding and removing the named memory of a pair. Called by rendezvous through bind/,
// before any operation.
#pragma once

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

// A segment of sizeof(Segment) zero bytes, mode 0600, under a random name that tells its maker's
// pid. Throws SystemError.
NamedSegment make_segment();
Fd attach_segment(const std::string& name);
// A name that is gone already is no error: both ends remove it.
void unlink_segment(const std::string& name);
// Removes segments whose maker is gone: it was killed between making one and both ends holding it.
// Returns the names.
std::vector<std::string> sweep_segments();

// The segment in this process's memory.
class Mapping {
 public:
  explicit Mapping(int fd);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  Segment& segment() const { return *segment_; }

 private:
  Segment* segment_;
};

}  // namespace standfast
