// buffer_view: what Python's buffer protocol tells about an object, without NumPy and without a
// copy.
#include "bind/buffer.h"

#include <string>

namespace nb = nanobind;

namespace standfast::bind {

nb::object buffer_view(nb::handle object, bool writable) {
  Py_buffer view;
  const int flags = PyBUF_FULL_RO | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) {
    PyErr_Clear();
    return nb::none();
  }
  nb::list shape;
  for (int i = 0; i < view.ndim; ++i) shape.append(view.shape[i]);
  const nb::tuple result =
      nb::make_tuple(reinterpret_cast<std::uintptr_t>(view.buf), static_cast<std::size_t>(view.len),
                     view.format != nullptr ? view.format : "B", nb::tuple(shape),
                     PyBuffer_IsContiguous(&view, 'C') != 0, view.readonly != 0);
  // The caller keeps the object, which keeps the memory; exporters that could move it refuse to
  // while views exist, and Python code that resizes an array during an operation on it has a bug
  // that a held view would only move.
  PyBuffer_Release(&view);
  return result;
}

}  // namespace standfast::bind
