// How messages name ranks: "rank 3", "ranks [1, 2]"; of many the first ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace standfast {

inline std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kNamedMax = 16;
  if (ranks.size() == 1) return "rank " + std::to_string(ranks[0]);
  std::string text = "ranks [";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kNamedMax) {
    text += ", and " + std::to_string(ranks.size() - kNamedMax) + " more";
  }
  return text + "]";
}

}  // namespace standfast
