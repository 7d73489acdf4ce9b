// Two ends of a pair's shared memory, in one process, for tests of what is lent.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/fabric/shm/arena.h"
#include "tests/core/wires.h"

namespace standfast::test {

inline Tag tag_of(std::uint32_t seq, OpKind kind = OpKind::kAllGather) {
  Tag tag;
  tag.seq = seq;
  tag.kind = kind;
  tag.count = std::size_t{1} << 30;
  return tag;
}

class ShmPair {
 public:
  ShmPair() : mapping_(shared_mapping()) {
    auto [a, b] = socket_pair();
    wires.a = std::make_unique<ShmWire>(1, "shm", std::move(a), mapping_, true);
    wires.b = std::make_unique<ShmWire>(0, "shm", std::move(b), mapping_, false);
  }
  // The first long frame shows the arena to the peer.
  void introduce() {
    REQUIRE(Arena::here() != nullptr);
    const std::vector<std::byte> first = pattern(kEagerBytes + 1, 0);
    std::vector<std::byte> to(first.size());
    REQUIRE(wires.a->send(tag_of(0), first.data(), first.size()) == Turn::kDone);
    REQUIRE(wires.b->receive(tag_of(0), to.data(), to.size()) == Turn::kDone);
    REQUIRE(to == first);
  }
  Lane& lane_to_b() { return mapping_->segment().lanes[0]; }
  bool is_in_segment(const std::byte* at) const {
    const std::byte* begin = as_bytes(&mapping_->segment());
    return at >= begin && at < begin + sizeof(Segment);
  }
  // What the peer is shown next.
  const std::byte* seen(const Tag& tag, std::size_t bytes) {
    const std::byte* at = nullptr;
    REQUIRE(wires.b->view(tag, bytes, &at) == Turn::kDone);
    return at;
  }

  WirePair wires;

 private:
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace standfast::test
