// What a call of a Group's method asks of the core, for the usual arguments. For shortcut.cpp,
// under the GIL; sends nothing.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "bind/ndarray.h"
#include "core/group.h"

namespace standfast::bind {

// What an argument is, whatever it is called.
enum Arg : std::uint8_t { kX, kOp, kPeer, kTag, kShape, kDType, kFlag, kOut, kTimeout, kArgs };

// Methods whose arguments are looked at alike.
enum class Family : std::uint8_t {
  kReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive,
  kReceiveLike,
  kBarrier,
  kAgree,
};

inline constexpr int kPositionalMax = 4;

// The face of one method, as group.py declares it.
struct Form {
  const char* method;
  Family family;
  ReduceOp op;
  int required;
  int positional;
  Arg places[kPositionalMax];
  const char* peer;  // what the argument kPeer is called
  bool has_out;
};

// Null for a method that has no short way.
const Form* form_of(std::string_view method);

// Whose method is called.
struct Member {
  int rank;
  int size;
};

// The arguments of a vectorcall behind `self`: `count` by position, then one for each of `names`.
struct Arguments {
  PyObject* const* given;
  Py_ssize_t count;
  PyObject* names;  // a tuple, or null
};

// An operation, ready to be run.
struct Plan {
  Request request;
  const char* name = "";           // for messages
  std::optional<ArrayView> array;  // the one that messages describe
  nanobind::object result = nanobind::none();
  std::byte flag{};  // of agree: its operand, then its result
};

// False for whatever is not as usual, right or wrong: the method itself has to look at it.
bool make_plan(const Form& form, const Member& me, const Arguments& arguments, Plan* plan);

// Once, before anything else here.
void prepare_plans();

}  // namespace standfast::bind
