// The beacon: by it ranks of one host learn of a death before the kernel has freed the dead one's
// memory, which is when sockets close and pidfd fires. docs/design/beacon.md explains it. One per
// group, made and stopped by it; all else happens in a thread of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fd.h"

namespace standfast {

// The memory in which the ranks of a host meet: made by whoever comes first, mode 0600, room for
// each rank of the group. An invalid descriptor where the system has no beacons. Throws
// SystemError.
Fd open_beacon_memory(const std::string& name, int size);

struct BeaconConfig {
  Fd memory;
  int rank = 0;
  int size = 1;
  std::vector<int> ranks_here;  // this rank among them
  // Called in the beacon's thread, once for a rank. Must not block.
  std::function<void(int rank)> died;
  // Where neighbours can't tell all who must know: the program that does (none: ""), the control
  // links on which it tells of the death, and the frame by which it does so. The descriptors stay
  // the caller's.
  std::string sentinel;
  std::vector<int> links;
  std::vector<std::byte> last_words;
};

class Beacon {
 public:
  // Holds the beacon when it returns. Throws SystemError if there can be no memory or thread; a
  // sentinel that can't be started is only noted, since sockets still tell of the death.
  explicit Beacon(BeaconConfig config);
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;
  ~Beacon();

  // Leaves in order: nobody takes that for a death. Later calls do nothing.
  void stop();
  // Why there is no sentinel though one was asked for, or "".
  const std::string& sentinel_trouble() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace standfast
