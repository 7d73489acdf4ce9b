// The head of an array object is part of NumPy's binary interface: all modules that were compiled
// with NumPy's headers read these fields, with NumPy 1 and 2 alike. standfast does without those
// headers, and so without a NumPy to build with. Whether the fields are where they are taken to be
// is compared with what the buffer protocol tells about samples, before anything relies on it.
#include "bind/ndarray.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace nb = nanobind;

namespace standfast::bind {
namespace {

struct ArrayHead {
  PyObject_HEAD char* data;
  int axes;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kContiguous = 0x1;  // NPY_ARRAY_C_CONTIGUOUS
constexpr int kWritable = 0x400;  // NPY_ARRAY_WRITEABLE

// Which objects stand for a dtype. It only grows, under `learning`, while others read it.
class Learned {
 public:
  bool find(const PyObject* object, DType* dtype) const {
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
      if (entries_[i].object != object) continue;
      *dtype = entries_[i].dtype;
      return true;
    }
    return false;
  }
  // Keeps the object for ever. What has no room is not known here, and goes the long way.
  void add(nb::object object, DType dtype) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    if (count == entries_.size()) return;
    entries_[count] = {object.release().ptr(), dtype};
    count_.store(count + 1, std::memory_order_release);
  }

 private:
  struct Entry {
    PyObject* object;
    DType dtype;
  };
  std::array<Entry, 64> entries_{};    // thrice the dtypes, and room for a platform's second names
  std::atomic<std::size_t> count_{0};  // release, acquire: whoever sees it sees the entries
};

// What was learned of NumPy. Written by one thread at a time, which is all that the GIL or, where
// there is none, this mutex provides for.
nb::ft_mutex learning;
std::atomic<PyTypeObject*> array_type{nullptr};  // released last of what learn_numpy() writes
PyObject* numpy_empty = nullptr;
PyObject* dtype_of_code[kDTypeCount] = {};  // each written before `dtypes` has the code
Learned dtypes;                             // dtype objects, as arrays have them
Learned dtype_names;                        // what else stands for them in a recv

bool has_learned() { return array_type.load(std::memory_order_acquire) != nullptr; }

const ArrayHead* head_of(const PyObject* x) { return reinterpret_cast<const ArrayHead*>(x); }

// Does the head say what the buffer protocol says?
bool is_as_expected(PyObject* x, const nb::object& dtype) {
  Py_buffer view;
  if (PyObject_GetBuffer(x, &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  const ArrayHead* head = head_of(x);
  const bool is_contiguous = PyBuffer_IsContiguous(&view, 'C') != 0;
  const bool same = head->data == view.buf && head->axes == view.ndim &&
                    std::equal(view.shape, view.shape + view.ndim, head->shape) &&
                    ((head->flags & kContiguous) != 0) == is_contiguous &&
                    ((head->flags & kWritable) != 0) == (view.readonly == 0) &&
                    head->dtype == dtype.ptr();
  PyBuffer_Release(&view);
  return same;
}

void learn_dtype(const nb::object& dtype, DType code) {
  DType known;
  if (dtypes.find(dtype.ptr(), &known)) return;
  PyObject*& first = dtype_of_code[static_cast<int>(code)];
  const bool is_second = first != nullptr;  // a platform's second name for the same elements
  if (!is_second) first = nb::object(dtype).release().ptr();
  dtypes.add(dtype, code);
  dtype_names.add(dtype, code);
  if (is_second) return;
  dtype_names.add(dtype.attr("type"), code);
  PyObject* name = nb::str(dtype_name(code)).release().ptr();
  PyUnicode_InternInPlace(&name);
  dtype_names.add(nb::steal(name), code);
}

}  // namespace

bool view_ndarray(PyObject* x, ArrayView* view) {
  // Null before it was learned, and then the type of no object.
  if (x == nullptr || Py_TYPE(x) != array_type.load(std::memory_order_acquire)) return false;
  const ArrayHead* head = head_of(x);
  if ((head->flags & kContiguous) == 0 || !dtypes.find(head->dtype, &view->dtype)) return false;
  view->data = reinterpret_cast<std::byte*>(head->data);
  view->axes = head->axes;
  view->shape = head->shape;
  view->is_writable = (head->flags & kWritable) != 0;
  view->count = 1;
  for (int axis = 0; axis < head->axes; ++axis) {
    view->count *= static_cast<std::size_t>(head->shape[axis]);
  }
  view->bytes = view->count * dtype_bytes(view->dtype);
  return true;
}

PyObject* make_ndarray(DType dtype, const Py_ssize_t* shape, int axes) {
  PyObject* extents = PyTuple_New(axes);
  for (int axis = 0; extents != nullptr && axis < axes; ++axis) {
    PyTuple_SetItem(extents, axis, PyLong_FromSsize_t(shape[axis]));
  }
  if (extents == nullptr) return nullptr;
  PyObject* made = PyObject_CallFunctionObjArgs(numpy_empty, extents,
                                                dtype_of_code[static_cast<int>(dtype)], nullptr);
  Py_DECREF(extents);
  return made;
}

void learn_numpy_dtype(const nb::object& dtype, int code) {
  const nb::ft_lock_guard lock(learning);
  const bool is_new = has_learned() && dtype_of_code[code] == nullptr;
  if (is_new) learn_dtype(dtype, static_cast<DType>(code));
}

bool learned_dtype(PyObject* object, DType* dtype) { return dtype_names.find(object, dtype); }

bool learn_numpy(const nb::list& samples, const nb::object& empty) {
  const nb::ft_lock_guard lock(learning);
  if (has_learned()) return true;
  for (const nb::handle sample : samples) {
    const nb::object dtype = sample[0].attr("dtype");
    if (!is_as_expected(nb::object(sample[0]).ptr(), dtype)) return false;
  }
  for (const nb::handle sample : samples) {
    learn_dtype(sample[0].attr("dtype"), static_cast<DType>(nb::cast<int>(sample[1])));
  }
  numpy_empty = nb::object(empty).release().ptr();
  PyTypeObject* type = Py_TYPE(nb::object(samples[0][0]).ptr());
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  array_type.store(type, std::memory_order_release);
  return true;
}

}  // namespace standfast::bind
