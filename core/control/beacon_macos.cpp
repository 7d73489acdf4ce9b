// There is no beacon on macOS: its kernel knows no robust futex, and its pthread mutexes can't be
// robust. What the watch has there is kqueue's NOTE_EXIT and the end of links, which may be late
// for a big rank; docs/design/beacon.md says what is known.
#include "core/control/beacon.h"

namespace standfast {

Fd open_beacon_memory(const std::string&, int) { return Fd(); }

struct Beacon::Parts {
  std::string sentinel_trouble;
};

Beacon::Beacon(BeaconConfig) : parts_(std::make_unique<Parts>()) {}

Beacon::~Beacon() = default;

void Beacon::stop() {}

const std::string& Beacon::sentinel_trouble() const { return parts_->sentinel_trouble; }

}  // namespace standfast
