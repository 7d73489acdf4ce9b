// What a fabric file says: hosts, ports, cables and limits, as plain values. Pure; store.cpp makes
// the shared state of it. README.md has the format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/state.h"

namespace standfast::emulator {

struct PortPlan {
  std::string host;
  std::string device;
  int cable = -1;
  bool down = false;
  std::vector<GidEntry> gids;
};

struct CablePlan {
  std::string name;
  CableState state = CableState::kUp;
};

struct Plan {
  Profile profile = Profile::kApple;
  Policy policy = Policy::kCredit;
  Idle idle = Idle::kNap;
  bool early_receives_refused = false;
  bool trace = false;
  Limits limits{};
  std::vector<std::string> hosts;
  std::vector<PortPlan> ports;
  std::vector<CablePlan> cables;
};

// The plan of a fabric file's text. Throws std::invalid_argument: "line 3: ...".
Plan parse_plan(std::string_view text);

// Words of a line, without what follows a '#'.
std::vector<std::string> words_of(std::string_view line);

// "none", "fe80" (the device's own), "fe80:<hex>" or an IPv4 address; a RoCE profile makes one
// entry of each type of it. Throws std::invalid_argument.
std::vector<GidEntry> parse_gid(std::string_view text, std::uint64_t own, Profile profile);

// What distinguishes the link-local address of a device: a number made of both names, 48 bits.
std::uint64_t own_address(std::string_view host, std::string_view device);

CableState parse_cable_state(std::string_view text);
std::uint64_t parse_number(std::string_view text);

}  // namespace standfast::emulator
