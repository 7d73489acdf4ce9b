#include "core/fabric/verbs/gid.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace standfast::verbs {
namespace {

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::string table_text(const std::vector<GidEntry>& table) {
  std::string text;
  for (const GidEntry& entry : table) {
    if (is_zero(entry.gid)) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(entry.index) + ": " + text_of(entry.gid);
  }
  return text.empty() ? "empty" : text;
}

// A RoCE port has each address once per protocol version; the later one is routable.
void prefer_later_type(std::vector<GidEntry>& entries) {
  const auto latest =
      std::max_element(entries.begin(), entries.end(),
                       [](const GidEntry& a, const GidEntry& b) { return a.type < b.type; });
  if (latest == entries.end()) return;
  std::erase_if(entries, [type = latest->type](const GidEntry& e) { return e.type != type; });
}

std::vector<GidEntry> with_address(const std::vector<GidEntry>& entries,
                                   const std::string& address) {
  std::vector<GidEntry> found;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(found),
               [&](const GidEntry& entry) { return text_of(entry.gid) == address; });
  return found;
}

Trouble none(const GidQuestion& question) {
  std::string table = " (table: " + table_text(question.table);
  if (question.table.empty() && question.error != 0) {
    table += "; ibv_query_gid failed with " + number_text(question.error);
  }
  table += ")";
  if (!question.address.empty()) {
    return {"no_gid", "no GID for " + question.address + " on " + question.device + table,
            "give the interface that address, or name another one in the device file",
            question.device, 0};
  }
  return {
      "no_gid", "no IPv4-mapped GID on " + question.device + table,
      "the interface below it needs an IPv4 address (macOS: networksetup -setdhcp <service>, or "
      "-setmanual with an address of its own), and must be in no bridge",
      question.device, 0};
}

}  // namespace

bool is_zero(const Gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](auto byte) { return byte == 0; });
}

bool is_ipv4(const Gid& gid) { return std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0; }

bool same(const Gid& a, const Gid& b) { return std::memcmp(a.raw, b.raw, sizeof a.raw) == 0; }

std::string text_of(const Gid& gid) {
  char text[48];
  const std::uint8_t* raw = gid.raw;
  if (is_ipv4(gid)) {
    std::snprintf(text, sizeof text, "%d.%d.%d.%d", raw[12], raw[13], raw[14], raw[15]);
    return text;
  }
  std::string all;
  for (int i = 0; i < 16; i += 2) {
    std::snprintf(text, sizeof text, "%s%x", i == 0 ? "" : ":", raw[i] << 8 | raw[i + 1]);
    all += text;
  }
  return all;
}

const char* gid_type_name(GidType type) {
  switch (type) {
    case GidType::kInfiniBand: return "InfiniBand";
    case GidType::kRoceV1: return "RoCE v1";
    case GidType::kRoceV2: return "RoCE v2";
    case GidType::kUnknown: break;
  }
  return "unknown";
}

GidEntry choose_gid(const GidQuestion& question) {
  std::vector<GidEntry> found = question.table;
  const bool by_lid = question.layer == LinkLayer::kInfiniBand && question.address.empty();
  std::erase_if(found, [&](const GidEntry& entry) {
    return is_zero(entry.gid) || (!by_lid && !is_ipv4(entry.gid));
  });
  if (!question.address.empty()) found = with_address(found, question.address);
  if (found.empty()) throw VerbsError(none(question));
  if (by_lid) return found.front();
  prefer_later_type(found);
  for (const std::string& address : question.likely) {
    const std::vector<GidEntry> likely = with_address(found, address);
    if (!likely.empty()) return likely.front();
  }
  const bool is_one = std::all_of(found.begin(), found.end(), [&](const GidEntry& entry) {
    return same(entry.gid, found.front().gid);
  });
  if (is_one) return found.front();
  throw VerbsError({"ambiguous_gid",
                    question.device + " has several IPv4-mapped GIDs (table: " +
                        table_text(question.table) + "), and nothing says which one to use",
                    "name the address in the device file, as in \"" + question.device + "@" +
                        text_of(found.front().gid) + "\"",
                    question.device, 0});
}

}  // namespace standfast::verbs
