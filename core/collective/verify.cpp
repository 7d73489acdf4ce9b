#include "core/collective/verify.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/fault_hook.h"
#include "core/base/ranks_text.h"
#include "core/collective/algorithms.h"

namespace standfast {
namespace {

std::string text_of(std::uint64_t digest) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return text;
}

// Of the digests, by rank, the ranks that have each, in the order of their first rank.
using Side = std::pair<std::uint64_t, std::vector<int>>;
std::vector<Side> sides_of(const std::vector<std::uint64_t>& digests) {
  std::vector<Side> sides;
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    auto side = std::find_if(sides.begin(), sides.end(),
                             [&](const Side& each) { return each.first == digests[rank]; });
    if (side == sides.end()) side = sides.insert(sides.end(), {digests[rank], {}});
    side->second.push_back(static_cast<int>(rank));
  }
  return sides;
}

Finding finding_of(const std::vector<Side>& sides) {
  // The fewest are named: more likely than not, it is they who have the damage.
  const auto fewest = std::min_element(
      sides.begin(), sides.end(),
      [](const Side& a, const Side& b) { return a.second.size() < b.second.size(); });
  std::string text = "the ranks' results differ: ";
  for (const Side& side : sides) {
    if (&side != &sides.front()) text += ", ";
    text += ranks_text(side.second) + (side.second.size() == 1 ? " has" : " have");
    text += " digest " + text_of(side.first);
  }
  return {fewest->second.front(), text};
}

Outcome damaged(Comm& comm, int from, std::uint64_t sent, std::uint64_t came) {
  return comm.damaged({from, "rank " + std::to_string(from) + " sent data of digest " +
                                 text_of(sent) + ", and rank " + std::to_string(comm.rank()) +
                                 " has data of digest " + text_of(came)});
}

}  // namespace

Outcome verify_same(Comm& comm, const std::byte* data, std::size_t bytes) {
  const std::uint64_t own = digest_of(data, bytes) ^ damage_asked();
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(comm.size()));
  SF_TRY(
      all_gather(comm, Algorithm::kDirect, as_bytes(&own), as_bytes(digests.data()), sizeof own));
  const std::vector<Side> sides = sides_of(digests);
  return sides.size() == 1 ? Outcome::kOk : comm.damaged(finding_of(sides));
}

Outcome verify_sent(Comm& comm, int to, const std::byte* data, std::size_t bytes) {
  const std::uint64_t own = digest_of(data, bytes);
  SF_TRY(comm.send(to, &own, sizeof own));
  return comm.flush();
}

Outcome verify_received(Comm& comm, int from, const std::byte* data, std::size_t bytes) {
  std::uint64_t sent = 0;
  SF_TRY(comm.receive(from, &sent, sizeof sent));
  const std::uint64_t came = digest_of(data, bytes) ^ damage_asked();
  return sent == came ? Outcome::kOk : damaged(comm, from, sent, came);
}

Outcome verify_blocks(Comm& comm, const std::byte* in, const std::byte* out, std::size_t bytes) {
  const auto size = static_cast<std::size_t>(comm.size());
  std::vector<std::uint64_t> own(size);
  std::vector<std::uint64_t> sent(size);
  for (std::size_t rank = 0; rank < size; ++rank) own[rank] = digest_of(in + rank * bytes, bytes);
  SF_TRY(all_to_all(comm, as_bytes(own.data()), as_bytes(sent.data()), sizeof own[0]));
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::uint64_t came = digest_of(out + rank * bytes, bytes) ^ damage_asked();
    if (sent[rank] != came) return damaged(comm, static_cast<int>(rank), sent[rank], came);
  }
  return Outcome::kOk;
}

}  // namespace standfast
