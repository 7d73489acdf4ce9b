// From the arguments of a call to a request, as operations.py does it, but only where all is as it
// usually is.
#include "bind/plan.h"

#include <array>
#include <cmath>
#include <cstring>

namespace nb = nanobind;

namespace standfast::bind {
namespace {

// --- what a method takes

constexpr const char* kOpNames[] = {"sum", "max", "min", "prod"};

constexpr Form kForms[] = {
    {"all_reduce", Family::kReduce, ReduceOp::kSum, 1, 2, {kX, kOp}, "", true},
    {"all_sum", Family::kReduce, ReduceOp::kSum, 1, 1, {kX}, "", true},
    {"all_max", Family::kReduce, ReduceOp::kMax, 1, 1, {kX}, "", true},
    {"all_min", Family::kReduce, ReduceOp::kMin, 1, 1, {kX}, "", true},
    {"all_gather", Family::kAllGather, ReduceOp::kSum, 1, 1, {kX}, "", true},
    {"reduce_scatter", Family::kReduceScatter, ReduceOp::kSum, 1, 2, {kX, kOp}, "", true},
    {"sum_scatter", Family::kReduceScatter, ReduceOp::kSum, 1, 1, {kX}, "", true},
    {"broadcast", Family::kBroadcast, ReduceOp::kSum, 1, 2, {kX, kPeer}, "root", true},
    {"all_to_all", Family::kAllToAll, ReduceOp::kSum, 1, 1, {kX}, "", true},
    {"send", Family::kSend, ReduceOp::kSum, 2, 3, {kX, kPeer, kTag}, "dst", false},
    {"recv", Family::kReceive, ReduceOp::kSum, 3, 4, {kShape, kDType, kPeer, kTag}, "src", true},
    {"recv_like", Family::kReceiveLike, ReduceOp::kSum, 2, 3, {kX, kPeer, kTag}, "src", true},
    {"barrier", Family::kBarrier, ReduceOp::kSum, 0, 0, {}, "", false},
    {"agree", Family::kAgree, ReduceOp::kProd, 1, 1, {kFlag}, "", false},
};

// Interned, as the names in any call are: compared by address.
PyObject* arg_names[kArgs];
PyObject* op_names[4];
PyObject* peer_names[3];  // root, dst, src

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

bool is_peer_name(const Form& form, PyObject* name) {
  for (PyObject* each : peer_names) {
    if (each == name) return PyUnicode_CompareWithASCIIString(name, form.peer) == 0;
  }
  return false;
}

// Which argument of this method has this name; kArgs for none.
int arg_named(const Form& form, PyObject* name) {
  if (name == arg_names[kOut]) return form.has_out ? kOut : kArgs;
  if (name == arg_names[kTimeout]) return kTimeout;
  for (int i = 0; i < form.positional; ++i) {
    const Arg arg = form.places[i];
    if (arg == kPeer ? is_peer_name(form, name) : name == arg_names[arg]) return arg;
  }
  return kArgs;
}

using Found = std::array<PyObject*, kArgs>;  // null: not given

// False if the call is not one that the method accepts; the method then says why.
bool sort_arguments(const Form& form, const Arguments& arguments, Found* found) {
  const auto& [args, count, names] = arguments;
  if (count > form.positional) return false;
  for (Py_ssize_t i = 0; i < count; ++i) (*found)[form.places[i]] = args[i];
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_Size(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    const int arg = arg_named(form, PyTuple_GetItem(names, i));
    if (arg == kArgs || (*found)[static_cast<std::size_t>(arg)] != nullptr) return false;
    (*found)[static_cast<std::size_t>(arg)] = args[count + i];
  }
  for (int i = 0; i < form.required; ++i) {
    if ((*found)[form.places[i]] == nullptr) return false;
  }
  return true;
}

// --- from arguments to a request

bool is_given(PyObject* object) { return object != nullptr && object != Py_None; }

bool plan_timeout(PyObject* given, Request* request) {
  if (!is_given(given)) return true;
  if (!PyFloat_CheckExact(given) && !PyLong_CheckExact(given)) return false;
  const double seconds = PyFloat_AsDouble(given);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  if (!(seconds > 0) || std::isinf(seconds)) return false;
  request->timeout = from_seconds(seconds);
  return true;
}

bool plan_number(PyObject* given, int limit, int* number) {
  if (given == nullptr) return true;
  if (!PyLong_CheckExact(given)) return false;
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(given, &overflow);
  if (overflow != 0 || value < 0 || value > limit) return false;
  *number = static_cast<int>(value);
  return true;
}

bool plan_peer(const Member& me, const Found& found, bool may_be_me, Request* request) {
  return plan_number(found[kPeer], me.size - 1, &request->peer) &&
         (may_be_me || request->peer != me.rank);
}

bool plan_tag(const Found& found, Request* request) {
  return plan_number(found[kTag], INT32_MAX, &request->tag);
}

bool plan_op(const Form& form, const Found& found, DType dtype, Request* request) {
  request->op = form.op;
  if (PyObject* op = found[kOp]) {
    int code = 0;
    while (code < 4 && op != op_names[code]) ++code;
    if (code == 4) return false;
    request->op = static_cast<ReduceOp>(code);
  }
  const bool orders = request->op == ReduceOp::kMax || request->op == ReduceOp::kMin;
  return !(orders && dtype == DType::kComplex64);
}

struct Extents {
  static constexpr int kAxesMax = 64;
  int axes = 0;
  Py_ssize_t of[kAxesMax];

  explicit Extents(const ArrayView& like) : axes(like.axes) {
    std::memcpy(of, like.shape, static_cast<std::size_t>(axes) * sizeof of[0]);
  }
  Extents() = default;
};

// One rank's share of axis 0.
bool divide(Extents* shape, int size) {
  if (shape->axes == 0 || shape->of[0] % size != 0) return false;
  shape->of[0] /= size;
  return true;
}

// All ranks' arrays along axis 0.
bool stack(Extents* shape, int size) {
  if (shape->axes == 0) {
    shape->axes = 1;
    shape->of[0] = 1;
  }
  return !__builtin_mul_overflow(shape->of[0], Py_ssize_t{size}, &shape->of[0]);
}

bool is_apart(const ArrayView& a, const ArrayView& b) {
  return a.data >= b.data + b.bytes || b.data >= a.data + a.bytes;
}

// Where the result goes: `out`, or a new array.
bool plan_target(const Found& found, DType dtype, const Extents& shape, Plan* plan,
                 ArrayView* target) {
  if (is_given(found[kOut])) {
    plan->result = nb::borrow(found[kOut]);
  } else {
    plan->result = nb::steal(make_ndarray(dtype, shape.of, shape.axes));
    if (!plan->result.is_valid()) {
      PyErr_Clear();  // the method meets it again
      return false;
    }
  }
  if (!view_ndarray(plan->result.ptr(), target) || !target->is_writable) return false;
  if (target->dtype != dtype || target->axes != shape.axes) return false;
  const auto axes = static_cast<std::size_t>(shape.axes);
  if (std::memcmp(target->shape, shape.of, axes * sizeof shape.of[0]) != 0) return false;
  plan->request.dst = target->data;
  return true;
}

bool plan_source(const Found& found, ArrayView* x, Plan* plan) {
  if (!view_ndarray(found[kX], x) || x->axes > Extents::kAxesMax) return false;
  plan->request.src = x->data;
  plan->request.count = x->count;
  plan->request.dtype = x->dtype;
  plan->array = *x;
  return true;
}

// all_reduce and broadcast: out has x's shape, and may be x.
bool plan_like(const Found& found, Plan* plan) {
  ArrayView x;
  ArrayView target;
  if (!plan_source(found, &x, plan)) return false;
  if (!plan_target(found, x.dtype, Extents(x), plan, &target)) return false;
  return target.data == x.data || is_apart(x, target);
}

bool plan_reduce(const Form& form, const Found& found, Plan* plan) {
  static constexpr const char* kNames[] = {"all_sum", "all_max", "all_min", "all_prod"};
  plan->request.kind = RequestKind::kAllReduce;
  if (!plan_like(found, plan)) return false;
  if (!plan_op(form, found, plan->request.dtype, &plan->request)) return false;
  plan->name = kNames[static_cast<int>(plan->request.op)];
  return true;
}

bool plan_broadcast(const Member& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kBroadcast;
  plan->name = "broadcast";
  return plan_peer(me, found, true, &plan->request) && plan_like(found, plan);
}

bool plan_all_gather(const Member& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kAllGather;
  plan->name = "all_gather";
  ArrayView x;
  ArrayView target;
  if (!plan_source(found, &x, plan)) return false;
  Extents shape(x);
  if (!stack(&shape, me.size)) return false;
  if (!plan_target(found, x.dtype, shape, plan, &target)) return false;
  const std::byte* own = target.data + static_cast<std::size_t>(me.rank) * x.bytes;
  return x.data == own || is_apart(x, target);
}

bool plan_reduce_scatter(const Form& form, const Member& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kReduceScatter;
  ArrayView x;
  ArrayView target;
  if (!plan_source(found, &x, plan)) return false;
  if (!plan_op(form, found, x.dtype, &plan->request)) return false;
  plan->name = plan->request.op == ReduceOp::kSum ? "sum_scatter" : "reduce_scatter";
  Extents shape(x);
  if (!divide(&shape, me.size)) return false;
  if (!plan_target(found, x.dtype, shape, plan, &target)) return false;
  plan->request.count = target.count;
  return is_apart(x, target);
}

bool plan_all_to_all(const Member& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kAllToAll;
  plan->name = "all_to_all";
  ArrayView x;
  ArrayView target;
  if (!plan_source(found, &x, plan)) return false;
  Extents share(x);
  if (!divide(&share, me.size)) return false;
  if (!plan_target(found, x.dtype, Extents(x), plan, &target)) return false;
  plan->request.count = x.count / static_cast<std::size_t>(me.size);
  return is_apart(x, target);
}

bool plan_send(const Member& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kSend;
  plan->name = "send";
  ArrayView x;
  return plan_peer(me, found, false, &plan->request) && plan_tag(found, &plan->request) &&
         plan_source(found, &x, plan);
}

// From here on as recv, with a shape and a dtype.
bool plan_receive_of(const Member& me, const Found& found, DType dtype, const Extents& shape,
                     Plan* plan) {
  plan->request.kind = RequestKind::kReceive;
  plan->name = "recv";
  if (!plan_peer(me, found, false, &plan->request) || !plan_tag(found, &plan->request))
    return false;
  ArrayView target;
  if (!plan_target(found, dtype, shape, plan, &target)) return false;
  plan->request.count = target.count;
  plan->request.dtype = dtype;
  plan->array = target;
  return true;
}

bool read_extent(PyObject* given, Py_ssize_t* extent) {
  if (!PyLong_CheckExact(given)) return false;
  *extent = PyLong_AsSsize_t(given);
  if (*extent >= 0) return true;
  PyErr_Clear();
  return false;
}

bool read_shape(PyObject* given, Extents* shape) {
  if (!PyTuple_CheckExact(given)) {
    shape->axes = 1;
    return read_extent(given, &shape->of[0]);
  }
  const Py_ssize_t axes = PyTuple_Size(given);
  if (axes > Extents::kAxesMax) return false;
  shape->axes = static_cast<int>(axes);
  for (Py_ssize_t axis = 0; axis < axes; ++axis) {
    if (!read_extent(PyTuple_GetItem(given, axis), &shape->of[axis])) return false;
  }
  return true;
}

bool plan_receive(const Member& me, const Found& found, Plan* plan) {
  Extents shape;
  DType dtype{};
  return learned_dtype(found[kDType], &dtype) && read_shape(found[kShape], &shape) &&
         plan_receive_of(me, found, dtype, shape, plan);
}

bool plan_receive_like(const Member& me, const Found& found, Plan* plan) {
  ArrayView x;
  return view_ndarray(found[kX], &x) && x.axes <= Extents::kAxesMax &&
         plan_receive_of(me, found, x.dtype, Extents(x), plan);
}

bool plan_agree(const Found& found, Plan* plan) {
  if (found[kFlag] != Py_True && found[kFlag] != Py_False) return false;
  plan->name = "agree";
  plan->flag = std::byte{found[kFlag] == Py_True};
  plan->request.kind = RequestKind::kAllReduce;
  plan->request.op = ReduceOp::kProd;
  plan->request.dtype = DType::kBool;
  plan->request.src = plan->request.dst = &plan->flag;
  plan->request.count = 1;
  return true;
}

bool plan_barrier(Plan* plan) {
  plan->name = "barrier";
  plan->request.kind = RequestKind::kBarrier;
  return true;
}

}  // namespace

const Form* form_of(std::string_view method) {
  for (const Form& form : kForms) {
    if (method == form.method) return &form;
  }
  return nullptr;
}

bool make_plan(const Form& form, const Member& me, const Arguments& arguments, Plan* plan) {
  Found found{};
  if (!sort_arguments(form, arguments, &found)) return false;
  if (!plan_timeout(found[kTimeout], &plan->request)) return false;
  switch (form.family) {
    case Family::kReduce: return plan_reduce(form, found, plan);
    case Family::kAllGather: return plan_all_gather(me, found, plan);
    case Family::kReduceScatter: return plan_reduce_scatter(form, me, found, plan);
    case Family::kBroadcast: return plan_broadcast(me, found, plan);
    case Family::kAllToAll: return plan_all_to_all(me, found, plan);
    case Family::kSend: return plan_send(me, found, plan);
    case Family::kReceive: return plan_receive(me, found, plan);
    case Family::kReceiveLike: return plan_receive_like(me, found, plan);
    case Family::kBarrier: return plan_barrier(plan);
    case Family::kAgree: return plan_agree(found, plan);
  }
  return false;
}

void prepare_plans() {
  arg_names[kX] = interned("x");
  arg_names[kOp] = interned("op");
  arg_names[kTag] = interned("tag");
  arg_names[kShape] = interned("shape");
  arg_names[kDType] = interned("dtype");
  arg_names[kFlag] = interned("flag");
  arg_names[kOut] = interned("out");
  arg_names[kTimeout] = interned("timeout_s");
  for (int op = 0; op < 4; ++op) op_names[op] = interned(kOpNames[op]);
  peer_names[0] = interned("root");
  peer_names[1] = interned("dst");
  peer_names[2] = interned("src");
}

}  // namespace standfast::bind
