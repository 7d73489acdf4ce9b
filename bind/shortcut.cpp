// The short way from a method of Group to the core.
//
// An operation on a few bytes takes half a microsecond; its plan in Python (operations.py) takes
// ten. A shortcut stands in Group in place of such a method and makes the same plan natively where
// the arguments are the usual ones: NumPy arrays that need no copy, ranks that are plain ints. For
// everything else it calls the method, so that there is one place that knows what is wrong with an
// argument, and how to say so. tests/test_shortcut.py compares the two.
//
// It keeps the GIL for as long as an operation takes a few microseconds, which most do; the wait
// gives it back (Hold) before it takes longer.
#include "bind/shortcut.h"

#include <nanobind/stl/string.h>
#include <structmember.h>

#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>

#include "bind/group_handle.h"
#include "bind/ndarray.h"
#include "core/group.h"

namespace nb = nanobind;

namespace standfast::bind {
namespace {

// Operations that read or write more than this take long enough for others to want the GIL.
constexpr std::size_t kHeldBytesMax = 8 * 1024;

// --- what a method takes

enum Arg : std::uint8_t { kX, kOp, kPeer, kTag, kShape, kDType, kFlag, kOut, kTimeout, kArgs };
using Found = std::array<PyObject*, kArgs>;  // null: not given

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

constexpr const char* kOpNames[] = {"sum", "max", "min", "prod"};
constexpr int kPositionalMax = 4;

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
PyObject* stopped_name;
PyObject* cut_name;

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

// False if the call is not one that the method accepts; the method then says why.
bool sort_arguments(const Form& form, PyObject* const* args, Py_ssize_t count, PyObject* names,
                    Found* found) {
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

// What a method's group is to it. The base of Group, so that it is found without a look-up.
struct Anchor {
  PyObject_HEAD PyObject* core;  // a GroupHandle; null before anchor()
  Group* group;
  int rank;
  int size;
  PyObject* over;  // Group._over: what every later call raises, or None
};

struct Plan {
  Request request;
  const char* name = "";           // for messages
  std::optional<ArrayView> array;  // the one that messages describe
  nb::object result = nb::none();
  std::byte flag{};  // of agree
};

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

bool plan_peer(const Anchor& me, const Found& found, bool may_be_me, Request* request) {
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

bool plan_broadcast(const Anchor& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kBroadcast;
  plan->name = "broadcast";
  return plan_peer(me, found, true, &plan->request) && plan_like(found, plan);
}

bool plan_all_gather(const Anchor& me, const Found& found, Plan* plan) {
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

bool plan_reduce_scatter(const Form& form, const Anchor& me, const Found& found, Plan* plan) {
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

bool plan_all_to_all(const Anchor& me, const Found& found, Plan* plan) {
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

bool plan_send(const Anchor& me, const Found& found, Plan* plan) {
  plan->request.kind = RequestKind::kSend;
  plan->name = "send";
  ArrayView x;
  return plan_peer(me, found, false, &plan->request) && plan_tag(found, &plan->request) &&
         plan_source(found, &x, plan);
}

// From here on as recv, with a shape and a dtype.
bool plan_receive_of(const Anchor& me, const Found& found, DType dtype, const Extents& shape,
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

bool plan_receive(const Anchor& me, const Found& found, Plan* plan) {
  Extents shape;
  DType dtype{};
  return learned_dtype(found[kDType], &dtype) && read_shape(found[kShape], &shape) &&
         plan_receive_of(me, found, dtype, shape, plan);
}

bool plan_receive_like(const Anchor& me, const Found& found, Plan* plan) {
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

// False for whatever is not as usual, right or wrong.
bool make_plan(const Form& form, const Anchor& me, const Found& found, Plan* plan) {
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

// --- running it

// The GIL, held by this thread until somebody may have to wait for it.
class Gil final : public Hold {
 public:
  Gil() = default;
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { take_again(); }
  void give_back() override {
    if (saved_ == nullptr) saved_ = PyEval_SaveThread();
  }
  void take_again() {
    if (saved_ != nullptr) PyEval_RestoreThread(std::exchange(saved_, nullptr));
  }

 private:
  PyThreadState* saved_ = nullptr;
};

nb::object shape_of(const ArrayView& array) {
  nb::list shape;
  for (int axis = 0; axis < array.axes; ++axis) shape.append(array.shape[axis]);
  return nb::tuple(shape);
}

// Raises what Group._stopped() makes of a failure.
PyObject* raise_failure(PyObject* self, Plan& plan, Failure failure) {
  const nb::object text = nb::cast(std::move(failure));
  nb::object dtype = nb::none();
  nb::object shape = nb::none();
  if (plan.array) {
    dtype = nb::cast(static_cast<int>(plan.array->dtype));
    shape = shape_of(*plan.array);
  }
  const nb::object answer =
      nb::handle(self).attr(nb::handle(stopped_name))(text, nb::str(plan.name), dtype, shape);
  PyErr_SetString(PyExc_SystemError, "Group._stopped() raised nothing");
  return nullptr;
}

// A signal handler's exception is set: lets Group._cut_short() note it, and hands it on.
PyObject* hand_on_exception(PyObject* self, const Plan& plan) {
  nb::python_error raised;
  nb::handle(self).attr(nb::handle(cut_name))(nb::str(plan.name));
  raised.restore();
  return nullptr;
}

PyObject* run_plan(const Form& form, PyObject* self, Group& group, Plan& plan) {
  Result result;
  {
    Gil gil;
    if (plan.array && plan.array->bytes > kHeldBytesMax) gil.give_back();
    result = group.run(plan.request, signal_raised, &gil);
  }
  if (PyErr_Occurred() != nullptr) return hand_on_exception(self, plan);
  if (result.failure) return raise_failure(self, plan, std::move(*result.failure));
  if (form.family == Family::kAgree) plan.result = nb::bool_(plan.flag != std::byte{0});
  return plan.result.release().ptr();
}

// --- the descriptor

struct Shortcut {
  PyObject_HEAD vectorcallfunc call;
  PyObject* method;  // the long way
  const Form* form;
};

PyTypeObject* anchor_type = nullptr;
PyTypeObject* shortcut_type = nullptr;

Shortcut& shortcut_of(PyObject* object) { return *reinterpret_cast<Shortcut*>(object); }

PyObject* call_shortcut(PyObject* callable, PyObject* const* args, std::size_t flagged,
                        PyObject* names) {
  const Shortcut& shortcut = shortcut_of(callable);
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  // Any other first argument is somebody else's mistake, or somebody else's object.
  if (count >= 1 && PyObject_TypeCheck(args[0], anchor_type)) {
    const Anchor& me = *reinterpret_cast<const Anchor*>(args[0]);
    const bool is_open =
        me.group != nullptr && (me.over == nullptr || me.over == Py_None) && me.group->is_open();
    Found found{};
    try {
      Plan plan;
      if (is_open && sort_arguments(*shortcut.form, args + 1, count - 1, names, &found) &&
          make_plan(*shortcut.form, me, found, &plan)) {
        return run_plan(*shortcut.form, args[0], *me.group, plan);
      }
    } catch (nb::python_error& error) {
      error.restore();
      return nullptr;
    } catch (const std::bad_alloc&) {
      return PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      return nullptr;
    }
  }
  return PyObject_Vectorcall(shortcut.method, args, flagged, names);
}

// A bound method, for those who keep one.
PyObject* bind_shortcut(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(self);
  static PyObject* const method_type =
      nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
  return PyObject_CallFunctionObjArgs(method_type, self, instance, nullptr);
}

// __name__, __doc__, __module__, __qualname__, __wrapped__ ...: those of the method.
PyObject* attribute_of_shortcut(PyObject* self, PyObject* name) {
  if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0) {
    return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  }
  PyObject* method = shortcut_of(self).method;
  if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(method);
  return PyObject_GetAttr(method, name);
}

PyObject* shortcut_text(PyObject* self) { return PyObject_Repr(shortcut_of(self).method); }

int visit_shortcut(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(shortcut_of(self).method);
  return 0;
}

int clear_shortcut(PyObject* self) {
  Py_CLEAR(shortcut_of(self).method);
  return 0;
}

void free_shortcut(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  (void)clear_shortcut(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

PyTypeObject* make_type(PyType_Spec* spec) {
  PyObject* type = PyType_FromSpec(spec);
  if (type == nullptr) throw nb::python_error();
  return reinterpret_cast<PyTypeObject*>(type);
}

PyTypeObject* make_shortcut_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Shortcut, call), READONLY, nullptr}, {}};
  static PyType_Slot slots[] = {{Py_tp_call, slot(PyVectorcall_Call)},
                                {Py_tp_descr_get, slot(bind_shortcut)},
                                {Py_tp_getattro, slot(attribute_of_shortcut)},
                                {Py_tp_repr, slot(shortcut_text)},
                                {Py_tp_traverse, slot(visit_shortcut)},
                                {Py_tp_clear, slot(clear_shortcut)},
                                {Py_tp_dealloc, slot(free_shortcut)},
                                {Py_tp_members, members},
                                {0, nullptr}};
  constexpr auto kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                          Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  static PyType_Spec spec = {"standfast._core.Shortcut", sizeof(Shortcut), 0, kFlags, slots};
  return make_type(&spec);
}

nb::object make_shortcut(const nb::object& method) {
  const auto name = nb::cast<std::string>(method.attr("__name__"));
  for (const Form& form : kForms) {
    if (name != form.method) continue;
    PyObject* made = PyType_GenericAlloc(shortcut_type, 0);
    if (made == nullptr) throw nb::python_error();
    shortcut_of(made).call = call_shortcut;
    shortcut_of(made).method = Py_NewRef(method.ptr());
    shortcut_of(made).form = &form;
    return nb::steal(made);
  }
  throw nb::value_error(("no shortcut for " + name).c_str());
}

// --- the base of Group

Anchor& anchor_of(PyObject* object) { return *reinterpret_cast<Anchor*>(object); }

int visit_anchor(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(anchor_of(self).core);
  Py_VISIT(anchor_of(self).over);
  return 0;
}

int clear_anchor(PyObject* self) {
  anchor_of(self).group = nullptr;
  Py_CLEAR(anchor_of(self).core);
  Py_CLEAR(anchor_of(self).over);
  return 0;
}

void free_anchor(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  (void)clear_anchor(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// _anchor(core, rank, size)
PyObject* anchor(PyObject* self, PyObject* args) {
  PyObject* core = nullptr;
  Anchor& me = anchor_of(self);
  int rank = 0;
  int size = 0;
  if (PyArg_ParseTuple(args, "Oii", &core, &rank, &size) == 0) return nullptr;
  const GroupHandle* handle = nullptr;
  if (!nb::try_cast(nb::handle(core), handle) || handle == nullptr) {
    PyErr_SetString(PyExc_TypeError, "core is no native group");
    return nullptr;
  }
  Py_XSETREF(me.core, Py_NewRef(core));
  me.group = &handle->get();
  me.rank = rank;
  me.size = size;
  Py_RETURN_NONE;
}

PyTypeObject* make_anchor_type() {
  static PyMemberDef members[] = {{"_over", T_OBJECT, offsetof(Anchor, over), 0, nullptr}, {}};
  static PyMethodDef methods[] = {{"_anchor", anchor, METH_VARARGS, nullptr}, {}};
  static PyType_Slot slots[] = {{Py_tp_traverse, slot(visit_anchor)},
                                {Py_tp_clear, slot(clear_anchor)},
                                {Py_tp_dealloc, slot(free_anchor)},
                                {Py_tp_members, members},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  constexpr auto kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE;
  static PyType_Spec spec = {"standfast._core.Anchor", sizeof(Anchor), 0, kFlags, slots};
  return make_type(&spec);
}

void intern_names() {
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
  stopped_name = interned("_stopped");
  cut_name = interned("_cut_short");
}

}  // namespace

void define_shortcut(nb::module_& m) {
  intern_names();
  anchor_type = make_anchor_type();
  shortcut_type = make_shortcut_type();
  m.attr("Anchor") = nb::handle(reinterpret_cast<PyObject*>(anchor_type));
  m.def("shortcut", &make_shortcut);
}

}  // namespace standfast::bind
