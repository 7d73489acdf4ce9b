// Links and wires between two devices of a verbs library of this process.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fabric/verbs/wire.h"
#include "tests/core/loopback_verbs.h"
#include "tests/core/support.h"

namespace standfast::test {

inline bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

struct LinkPair {
  std::unique_ptr<verbs::Link> a;
  std::unique_ptr<verbs::Link> b;
};

inline std::vector<std::unique_ptr<verbs::Rail>> rails_of(const char* device, int count) {
  const auto domain = std::make_shared<verbs::Domain>(Loopback::instance().library(),
                                                      verbs::Domain::Use{device, 1, count});
  std::vector<std::unique_ptr<verbs::Rail>> rails;
  for (int i = 0; i < count; ++i) rails.push_back(std::make_unique<verbs::Rail>(domain));
  return rails;
}

inline LinkPair link_pair_of(std::vector<std::unique_ptr<verbs::Rail>> here,
                             std::vector<std::unique_ptr<verbs::Rail>> there) {
  for (std::size_t i = 0; i < here.size(); ++i) {
    const verbs::RailAddress a = here[i]->address("", {});
    const verbs::RailAddress b = there[i]->address("", {});
    here[i]->connect(b, "rank 1", 7);
    there[i]->connect(a, "rank 0", 7);
  }
  LinkPair links{std::make_unique<verbs::Link>(std::move(here), verbs::Link::Ends{77, true}),
                 std::make_unique<verbs::Link>(std::move(there), verbs::Link::Ends{77, false})};
  links.a->greet();
  links.b->greet();
  if (!links.a->is_greeted() || !links.b->is_greeted()) {
    throw std::runtime_error("no greeting: " + links.a->trouble() + links.b->trouble());
  }
  return links;
}

// With whatever the library has been told to do.
inline LinkPair link_pair_as_is(int rails) {
  return link_pair_of(rails_of("rdma_a", rails), rails_of("rdma_b", rails));
}

inline LinkPair link_pair(int rails) {
  Loopback::instance().reset();
  return link_pair_as_is(rails);
}

}  // namespace standfast::test
