#include "core/base/tag.h"

namespace standfast {

const char* op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kNone: return "nothing";
    case OpKind::kAllReduce: return "all_reduce";
    case OpKind::kAllGather: return "all_gather";
    case OpKind::kReduceScatter: return "reduce_scatter";
    case OpKind::kBroadcast: return "broadcast";
    case OpKind::kAllToAll: return "all_to_all";
    case OpKind::kGather:
    case OpKind::kGatherBytes: return "gather";
    case OpKind::kScatter: return "scatter";
    case OpKind::kSend: return "send";
    case OpKind::kBarrier: return "barrier";
    case OpKind::kGoodbye: return "goodbye";
  }
  return "unknown operation";
}

std::string describe(const Tag& tag) {
  const std::string elements =
      std::string(dtype_name(tag.dtype)) + "[" + std::to_string(tag.count) + "]";
  const std::string number = " #" + std::to_string(tag.seq);
  const std::string name = op_kind_name(tag.kind);
  switch (tag.kind) {
    case OpKind::kAllReduce: return std::string("all_") + op_name(tag.op) + " " + elements + number;
    case OpKind::kReduceScatter: return name + "(" + op_name(tag.op) + ") " + elements + number;
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter:
      return name + "(root=" + std::to_string(tag.root_or_tag) + ") " + elements + number;
    case OpKind::kGatherBytes:
      return name + "(root=" + std::to_string(tag.root_or_tag) + ") bytes" + number;
    case OpKind::kSend:
      return name + "(tag=" + std::to_string(tag.root_or_tag) + ") " + elements + number;
    case OpKind::kBarrier: return name + number;
    default: return name + " " + elements + number;
  }
}

}  // namespace standfast
