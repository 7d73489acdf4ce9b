// This rank's RDMA devices while a group is being formed: the rails to each peer, from creating
// them to the first message. Rendezvous calls it through bind/, in one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/fabric/verbs/link.h"

namespace standfast::verbs {

// One end of a cable, as a device file names it.
struct Cell {
  std::string device;
  int port = 1;
  std::string address;  // the IPv4 address to use, "" for the only one
};

class Station {
 public:
  // `cells`: by peer, one per rail. Opens the devices and creates all queue pairs; nothing is left
  // if that fails. Throws VerbsError.
  Station(const std::string& library, const std::map<int, std::vector<Cell>>& cells);
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  // What the peer must know. `likely`: addresses that decide where a device has several. Throws
  // VerbsError; no_gid and port_down may pass.
  std::vector<RailAddress> addresses(int peer, const std::vector<std::string>& likely);
  // `peer_text` is for messages. Throws VerbsError.
  void connect(int peer, const std::vector<RailAddress>& theirs, const std::string& peer_text,
               Link::Ends ends);
  // After connect(), whether it threw or not: from addresses() on, all has to be done again. Throws
  // VerbsError.
  void renew(int peer);
  // Both ends are connected: says hello over each rail.
  void greet(int peer) { link_of(peer).greet(); }
  // Whether the peer's hello came over each rail; throws VerbsError if the link broke meanwhile.
  bool is_greeted(int peer);
  std::string silent_rails(int peer) { return link_of(peer).silent_rails(); }
  // "rdma rdma_en5 (10.0.0.1) to rdma_en4 (10.0.0.2), ...".
  std::string text(int peer) const { return texts_.at(peer); }
  std::unique_ptr<Link> release(int peer);

 private:
  Link& link_of(int peer) { return *links_.at(peer); }

  std::map<int, std::vector<Cell>> cells_;
  std::map<int, std::vector<std::unique_ptr<Rail>>> rails_;
  std::map<int, std::unique_ptr<Link>> links_;
  std::map<int, std::string> texts_;
};

}  // namespace standfast::verbs
