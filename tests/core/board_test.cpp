// Where operations write what they do: control/board.h.
#include "core/control/board.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace standfast {
namespace {

Tag collective(std::uint32_t number) {
  return make_tag(number, OpKind::kAllReduce, DType::kFloat32, ReduceOp::kSum, 0, 8);
}

}  // namespace

// What the threads write on the board is what beats say.
TEST_CASE("board: what a rank does") {
  Board board;
  Status status = board.read(5);
  CHECK_FALSE(status.began_anything());
  CHECK_FALSE(status.waits());
  const Tag first = collective(1);
  board.receiving.begin(first);
  status = board.read(10);
  CHECK(status.began_anything());
  CHECK(status.started == 1);
  CHECK(status.finished == 0);
  CHECK(status.digest == digest_after(0, collective(1)));
  CHECK(status.runs());
  CHECK_FALSE(status.waits());
  board.receiving.waits_for(0, 4);
  status = board.read(10);
  CHECK(status.halves[0].waits());
  CHECK(status.halves[0].waiting_for == 0);
  CHECK(status.halves[0].waited == 6);
  CHECK(board.read(3).halves[0].waited == 0);
  board.receiving.goes_on();
  CHECK_FALSE(board.read(10).waits());
  board.receiving.waits_for(2, 4);
  board.receiving.end(first);
  status = board.read(10);
  CHECK(status.finished == 1);
  CHECK_FALSE(status.waits());
  CHECK_FALSE(status.runs());
  Tag message = collective(5);
  message.kind = OpKind::kSend;
  board.receiving.begin(message);
  status = board.read(10);
  CHECK(status.halves[0].tag == message);
  CHECK(status.runs());
  CHECK(status.started == 1);  // a message is no part of the history
  CHECK(status.finished == 1);
  CHECK(status.digest == digest_after(0, collective(1)));
  board.receiving.end(message);
  CHECK(board.read(10).finished == 1);
  const Tag second = collective(2);
  board.receiving.begin(second);
  board.receiving.end(second);
  status = board.read(10);
  CHECK(status.halves[0].tag == second);
  CHECK_FALSE(status.runs());
  CHECK(status.started == 2);
  CHECK(status.finished == 2);
  CHECK(status.digest == digest_after(digest_after(0, collective(1)), second));
  board.program_beats("decode", 3, 7);
  status = board.read(10);
  CHECK(status.program.busy);
  CHECK(status.program.step == 3);
  CHECK(status.program.age == 3);
  CHECK(status.program.label == "decode");
  board.program_idles();
  CHECK_FALSE(board.read(10).program.busy);
}

// The digest tells histories apart that differ in any part of a tag or in their order.
TEST_CASE("board: digests of histories") {
  const Tag one = collective(1);
  Tag other = one;
  std::vector<std::uint64_t> digests = {digest_after(0, one)};
  other.count = 9;
  digests.push_back(digest_after(0, other));
  other = one;
  other.dtype = DType::kInt32;
  digests.push_back(digest_after(0, other));
  other = one;
  other.op = ReduceOp::kMax;
  digests.push_back(digest_after(0, other));
  other = one;
  other.kind = OpKind::kBroadcast;
  digests.push_back(digest_after(0, other));
  other.root_or_tag = 1;
  digests.push_back(digest_after(0, other));
  digests.push_back(digest_after(digest_after(0, one), other));
  digests.push_back(digest_after(digest_after(0, other), one));
  std::sort(digests.begin(), digests.end());
  CHECK(std::adjacent_find(digests.begin(), digests.end()) == digests.end());
}

}  // namespace standfast
