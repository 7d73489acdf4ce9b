// What Python's buffer protocol tells about an object.
#pragma once

#include <nanobind/nanobind.h>

namespace standfast::bind {

// (address, nbytes, format, shape, c_contiguous, readonly), or None if the object offers no such
// buffer.
nanobind::object buffer_view(nanobind::handle object, bool writable);

}  // namespace standfast::bind
