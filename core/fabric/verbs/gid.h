// Which entry of a port's GID table stands for this end of a cable. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {

enum class GidType : std::int8_t { kUnknown = -1, kInfiniBand = 0, kRoceV1 = 1, kRoceV2 = 2 };

struct GidEntry {
  int index = 0;
  Gid gid{};
  GidType type = GidType::kUnknown;
};

bool is_zero(const Gid& gid);
bool is_ipv4(const Gid& gid);
bool same(const Gid& a, const Gid& b);
// "10.0.0.1" for an IPv4-mapped one, else "fe80:0:0:0:...".
std::string text_of(const Gid& gid);
const char* gid_type_name(GidType type);

struct GidQuestion {
  std::string device;
  LinkLayer layer = LinkLayer::kUnspecified;
  std::vector<GidEntry> table;
  std::string address;              // must be this one; "" for any
  std::vector<std::string> likely;  // decides where several would do
  int error = 0;                    // why entries could not be read, if so
};

// The entry is used by its own index: it is nowhere the same on all hosts. On InfiniBand any entry
// does, since the LID is the address there. Throws VerbsError: no_gid, ambiguous_gid. What is
// missing may still come (an IPv4 address by DHCP, say): ask again.
GidEntry choose_gid(const GidQuestion& question);

}  // namespace standfast::verbs
