// Which operation something belongs to: a frame, a rank's state, a message to the user.
#pragma once

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

// "all_sum float32[1024] #7", for messages.
std::string describe(const Tag& tag);

}  // namespace standfast
