// NumPy's arrays by their memory, without a call into NumPy. For shortcut.cpp: with each small
// operation come one or two arrays, and the buffer protocol takes a tenth of a microsecond for
// each.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "core/base/dtype.h"

namespace standfast::bind {

// A numpy.ndarray as the core sees it. Borrowed: valid while the caller holds the array.
struct ArrayView {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  std::size_t bytes = 0;
  DType dtype = DType::kUInt8;
  int axes = 0;
  const Py_ssize_t* shape = nullptr;
  bool is_writable = false;
};

// False for whatever is not exactly a numpy.ndarray, C-contiguous, of a dtype that was learned.
bool view_ndarray(PyObject* x, ArrayView* view);

// A new array with undefined contents, or null with an exception set.
PyObject* make_ndarray(DType dtype, const Py_ssize_t* shape, int axes);

// What recv's `dtype` stands for, if it is one of the learned dtypes, its type or its name.
bool learned_dtype(PyObject* object, DType* dtype);

// Called once, when the first array is seen: `samples` are pairs of an array and its dtype's code,
// `empty` is numpy.empty. True if arrays lie in memory as expected here.
bool learn_numpy(const nanobind::list& samples, const nanobind::object& empty);

// A dtype that is no sample's, for the buffer protocol does not know it: bfloat16.
void learn_numpy_dtype(const nanobind::object& dtype, int code);

}  // namespace standfast::bind
