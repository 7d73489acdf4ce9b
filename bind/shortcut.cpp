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

#include <new>
#include <string>
#include <utility>

#include "bind/group_handle.h"
#include "bind/plan.h"
#include "core/group.h"

namespace nb = nanobind;

namespace standfast::bind {
namespace {

// Operations that read or write more than this take long enough for others to want the GIL.
constexpr std::size_t kHeldBytesMax = 8 * 1024;

PyObject* stopped_name;
PyObject* cut_name;

PyObject* method_type;  // types.MethodType

// What a method's group is to it. The base of Group, so that it is found without a look-up.
struct Anchor {
  PyObject_HEAD PyObject* core;  // a GroupHandle; null before anchor(), and the same ever after
  Group* group;
  Member member;
  PyObject* over;  // Group._over: what every later call raises, or None
};

// Another thread may be writing it, where there is no GIL; Python's own writes are atomic there.
bool is_over(const Anchor& anchor) {
  return __atomic_load_n(&anchor.over, __ATOMIC_ACQUIRE) != Py_None;
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
    const bool is_open = me.group != nullptr && !is_over(me) && me.group->is_open();
    try {
      Plan plan;
      if (is_open && make_plan(*shortcut.form, me.member, {args + 1, count - 1, names}, &plan)) {
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
  const Form* form = form_of(name);
  if (form == nullptr) throw nb::value_error(("no shortcut for " + name).c_str());
  PyObject* made = PyType_GenericAlloc(shortcut_type, 0);
  if (made == nullptr) throw nb::python_error();
  shortcut_of(made).call = call_shortcut;
  shortcut_of(made).method = Py_NewRef(method.ptr());
  shortcut_of(made).form = form;
  return nb::steal(made);
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

// _anchor(core, rank, size): once, before the group is known to anybody.
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
  if (me.core != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "it has a core");
    return nullptr;
  }
  me.core = Py_NewRef(core);
  me.group = &handle->get();
  me.member = {rank, size};
  Py_RETURN_NONE;
}

PyTypeObject* make_anchor_type() {
  static PyMemberDef members[] = {{"_over", T_OBJECT_EX, offsetof(Anchor, over), 0, nullptr}, {}};
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

}  // namespace

void define_shortcut(nb::module_& m) {
  prepare_plans();
  stopped_name = PyUnicode_InternFromString("_stopped");
  cut_name = PyUnicode_InternFromString("_cut_short");
  method_type = nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
  anchor_type = make_anchor_type();
  shortcut_type = make_shortcut_type();
  m.attr("Anchor") = nb::handle(reinterpret_cast<PyObject*>(anchor_type));
  m.def("shortcut", &make_shortcut,
        "Let usual arguments take a short way past a method of Group, known by its name.\n\n"
        "The method is called where they are unusual or wrong. Group must have _stopped() and"
        "\n_cut_short() for what ends an operation.");
}

}  // namespace standfast::bind
