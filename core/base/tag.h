// Which operation something belongs to: a frame, a rank's state, a message to the user.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/dtype.h"

namespace standfast {

enum class OpKind : std::uint8_t {
  kNone = 0,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kGather,
  kGatherBytes,
  kScatter,
  kSend,
  kBarrier,
  kGoodbye = 255,
};

const char* op_kind_name(OpKind kind);

// Carried by each data frame: ranks that disagree see it at the first one.
struct Tag {
  std::uint32_t seq = 0;
  OpKind kind = OpKind::kNone;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t algorithm = 0;
  std::int32_t root_or_tag = 0;
  std::uint32_t spare = 0;
  std::uint64_t count = 0;  // elements, as the operation defines it

  bool operator==(const Tag&) const = default;
};
static_assert(sizeof(Tag) == 24);

// Put together in registers, as words: tags are read as words right after they were made, and bytes
// that were written one by one would have to reach the cache first, for some 15 cycles.
constexpr Tag make_tag(std::uint32_t seq, OpKind kind, DType dtype, ReduceOp op,
                       std::int32_t root_or_tag, std::uint64_t count) {
  static_assert(std::endian::native == std::endian::little, "the order of the fields in a word");
  const std::uint64_t what = seq | static_cast<std::uint64_t>(kind) << 32 |
                             static_cast<std::uint64_t>(dtype) << 40 |
                             static_cast<std::uint64_t>(op) << 48;
  return std::bit_cast<Tag>(
      std::array<std::uint64_t, 3>{what, static_cast<std::uint32_t>(root_or_tag), count});
}

// "all_sum float32[1024] #7", for messages.
std::string describe(const Tag& tag);

}  // namespace standfast
