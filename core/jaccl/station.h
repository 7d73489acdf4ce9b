// This rank's lanes while a JACCL group is being formed: from opening the devices to the first
// message. The side channel's code calls it through bind/, in one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/jaccl/lane.h"

namespace standfast::jaccl {

// Where a lane begins: our end of a cable, and who is at the other.
struct Berth {
  int peer = 0;
  std::string device;
  int port = 1;
  std::string address;  // the IPv4 address to use, "" for the only one
};

class Station {
 public:
  // Opens the devices and creates all queue pairs, in the order of the berths; nothing is left if
  // that fails. Throws VerbsError.
  Station(const std::string& library, std::vector<Berth> berths);
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  // By berth. Throws VerbsError; port_down and no_gid may pass.
  std::vector<Record> records();
  // `peer_text` is for messages. Throws VerbsError.
  void connect(int berth, const Record& theirs, const std::string& peer_text);
  const std::string& text(int berth) const {
    return lanes_.at(static_cast<std::size_t>(berth))->text();
  }
  // `stock`: the peers that are none of ours.
  std::vector<std::unique_ptr<Lane>> release(const std::vector<int>& stock);

 private:
  const std::vector<Berth> berths_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace standfast::jaccl
