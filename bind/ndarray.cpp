// The head of an array object is part of NumPy's binary interface: all modules that were compiled
// with NumPy's headers read these fields, with NumPy 1 and 2 alike. standfast does without those
// headers, and so without a NumPy to build with. Whether the fields are where they are taken to be
// is compared with what the buffer protocol tells about samples, before anything relies on it.
#include "bind/ndarray.h"

#include <algorithm>
#include <vector>

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

struct Learned {
  PyObject* object;  // held for ever
  DType dtype;
};

// What was learned of NumPy. All under the GIL.
PyTypeObject* array_type = nullptr;
PyObject* numpy_empty = nullptr;
std::vector<Learned> dtypes;       // dtype objects, as arrays have them
std::vector<Learned> dtype_names;  // what else stands for them in a recv
PyObject* dtype_of_code[kDTypeCount] = {};

bool find(const std::vector<Learned>& among, const PyObject* object, DType* dtype) {
  for (const Learned& each : among) {
    if (each.object != object) continue;
    *dtype = each.dtype;
    return true;
  }
  return false;
}

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
  if (find(dtypes, dtype.ptr(), &known)) return;
  dtypes.push_back({nb::object(dtype).release().ptr(), code});
  dtype_names.push_back({dtypes.back().object, code});
  PyObject*& first = dtype_of_code[static_cast<int>(code)];
  if (first != nullptr) return;  // a platform's second name for the same elements
  first = dtypes.back().object;
  dtype_names.push_back({nb::object(dtype.attr("type")).release().ptr(), code});
  PyObject* name = nb::str(dtype_name(code)).release().ptr();
  PyUnicode_InternInPlace(&name);
  dtype_names.push_back({name, code});
}

}  // namespace

bool view_ndarray(PyObject* x, ArrayView* view) {
  if (x == nullptr || array_type == nullptr || Py_TYPE(x) != array_type) return false;
  const ArrayHead* head = head_of(x);
  if ((head->flags & kContiguous) == 0 || !find(dtypes, head->dtype, &view->dtype)) return false;
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
  const bool is_new = array_type != nullptr && dtype_of_code[code] == nullptr;
  if (is_new) learn_dtype(dtype, static_cast<DType>(code));
}

bool learned_dtype(PyObject* object, DType* dtype) { return find(dtype_names, object, dtype); }

bool learn_numpy(const nb::list& samples, const nb::object& empty) {
  if (array_type != nullptr) return true;
  for (const nb::handle sample : samples) {
    const nb::object dtype = sample[0].attr("dtype");
    if (!is_as_expected(nb::object(sample[0]).ptr(), dtype)) return false;
  }
  for (const nb::handle sample : samples) {
    learn_dtype(sample[0].attr("dtype"), static_cast<DType>(nb::cast<int>(sample[1])));
  }
  numpy_empty = nb::object(empty).release().ptr();
  array_type = reinterpret_cast<PyTypeObject*>(
      nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(nb::object(samples[0][0]).ptr())))
          .release()
          .ptr());
  return true;
}

}  // namespace standfast::bind
