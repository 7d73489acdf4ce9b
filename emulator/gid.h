// GIDs as the API shows them, and which of them are the same. Pure but for reading the table.
#pragma once

#include <cstring>

#include "core/fabric/verbs/abi.h"
#include "emulator/state.h"

namespace standfast::emulator {

inline GidEntry entry_at(const Port& port, std::size_t index) {
  return GidEntry::unpack(port.gids[index].load(std::memory_order_acquire));
}

// ::ffff:a.b.c.d, fe80::..., or all zero.
inline verbs::Gid bytes_of(const GidEntry& entry) {
  verbs::Gid gid{};
  for (int i = 0; i < 6; ++i) {
    const auto each = static_cast<std::uint8_t>(entry.value >> (40 - 8 * i));
    if (entry.kind == GidKind::kLinkLocal) gid.raw[10 + i] = each;
    if (entry.kind == GidKind::kIpv4 && i >= 2) gid.raw[10 + i] = each;
  }
  if (entry.kind == GidKind::kLinkLocal) {
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
  }
  if (entry.kind == GidKind::kIpv4) gid.raw[10] = gid.raw[11] = 0xff;
  return gid;
}

inline bool is_same(const verbs::Gid& one, const verbs::Gid& other) {
  return std::memcmp(one.raw, other.raw, sizeof one.raw) == 0;
}

inline bool is_zero(const verbs::Gid& gid) { return is_same(gid, verbs::Gid{}); }

inline bool is_ipv4(const verbs::Gid& gid) {
  static constexpr std::uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof kPrefix) == 0;
}

}  // namespace standfast::emulator
