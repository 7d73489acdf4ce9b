// The strings that Python uses for kinds, operators, fabrics and topologies, as the core's enums.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "core/group.h"

namespace standfast::bind {

template <class Enum, std::size_t kCount>
Enum named(const char* (&names)[kCount], std::string_view name, const char* what) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  throw nanobind::value_error((std::string("no such ") + what + ": " + std::string(name)).c_str());
}

inline RequestKind request_kind(std::string_view name) {
  static const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                "all_to_all", "gather",     "gather_bytes",   "scatter",
                                "send",       "recv",       "recv_bytes",     "barrier"};
  return named<RequestKind>(names, name, "operation");
}

inline ReduceOp reduce_op(std::string_view name) {
  static const char* names[] = {"sum", "max", "min", "prod"};
  return named<ReduceOp>(names, name, "reduction");
}

inline Topology topology(std::string_view name) {
  static const char* names[] = {"auto", "mesh", "ring", "direct", "two-phase"};
  return named<Topology>(names, name, "topology");
}

inline FabricKind fabric(std::string_view name) {
  static const char* names[] = {"shm", "tcp", "verbs"};
  return named<FabricKind>(names, name, "fabric");
}

inline Watch::Goodbye goodbye(std::string_view name) {
  static const char* names[] = {"orderly", "interrupted", "failed"};
  return named<Watch::Goodbye>(names, name, "way to close");
}

}  // namespace standfast::bind
