#include "bind/limits.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind/names.h"
#include "core/limits/limits.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {
namespace {

std::vector<double> measured(const std::string& name) {
  static const char* names[kLimitCount] = {"copy",         "copy_cached", "copy_on_two",
                                           "add",          "spin",        "wake_up",
                                           "tcp_blocking", "tcp_polling", "tcp_stream"};
  const Limit limit = named<Limit>(names, name, "limit");
  const nb::gil_scoped_release release;
  return measure_limit(limit);
}

}  // namespace

void define_limits(nb::module_& m) {
  m.def("measure_limit", &measured, "name"_a,
        "Measure what this machine allows, for a second or so; samples in bytes/s or seconds.\n\n"
        "name: copy, copy_cached, copy_on_two, add, spin, wake_up, tcp_blocking, tcp_polling,"
        " tcp_stream\n(core/limits/limits.h). Empty: it takes two cores, and this process may use"
        " one only.");
}

}  // namespace standfast::bind
