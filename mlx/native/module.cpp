// The module standfast_mlx._group: makes Groups of MLX's for Python. standfast/mlx/ calls it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <new>
#include <utility>

#include "group.h"

namespace mx = mlx::core;
namespace nb = nanobind;
using namespace nb::literals;

namespace standfast_mlx {
namespace {

const standfast_native& table_of(nb::handle capsule) {
  void* table = PyCapsule_GetPointer(capsule.ptr(), STANDFAST_NATIVE_CAPSULE);
  if (table == nullptr) throw nb::python_error();
  return *static_cast<const standfast_native*>(table);
}

// An instance of `cls`, a subclass of MLX's Group in Python.
nb::object made_group(nb::handle cls, nb::handle native, long serial) {
  auto group = std::make_shared<Group>(std::make_shared<const Link>(table_of(native), serial));
  nb::object made = nb::inst_alloc(cls);
  new (nb::inst_ptr<mx::distributed::Group>(made)) mx::distributed::Group(std::move(group));
  nb::inst_mark_ready(made);
  return made;
}

nb::object serial_of(const mx::distributed::Group& given) {
  const Group* group = Group::of(given);
  if (group == nullptr) return nb::none();
  return nb::int_(group->serial());
}

}  // namespace

NB_MODULE(_group, m) {
  // MLX's own module looks after what is shared with it.
  nb::set_leak_warnings(false);
  m.def("knows_mlx", [] { return nb::type<mx::distributed::Group>().is_valid(); });
  m.def("make", &made_group, "cls"_a, "native"_a, "serial"_a);
  m.def("serial_of", &serial_of, "group"_a);
  m.def("released", &Link::released);
  m.def(
      "ask",
      [](nb::callable tell, nb::callable split) {
        learn_teller(tell.ptr());
        learn_splitter(split.ptr());
      },
      "tell"_a, "split"_a);
}

}  // namespace standfast_mlx
