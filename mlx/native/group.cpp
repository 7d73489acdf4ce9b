// MLX's group interface over a Link: each operation becomes a task of MLX's stream.
#include "group.h"

#include <Python.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/utils.h>
#include <nanobind/nanobind.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

namespace mx = mlx::core;
namespace nb = nanobind;

namespace standfast_mlx {
namespace {

PyObject* splitter = nullptr;  // set once, before any group; never freed

// Which of MLX's groups are ours: asking by address needs no type information of another library.
struct Register {
  std::mutex mutex;
  std::unordered_set<const void*> alive;  // guarded by it

  static Register& one() {
    static auto* made = new Register;  // groups may outlive everything else
    return *made;
  }
};

struct Job {
  standfast_operation operation{};
  const char* name = "";
  mx::Shape shape;
};

standfast_operation operation_on(standfast_kind kind, const mx::array& counted) {
  standfast_operation operation{};
  operation.kind = kind;
  operation.dtype = dtype_code(counted.dtype());
  operation.count = counted.size();
  return operation;
}

Job reduction(standfast_reduction how, const char* name, const mx::array& in, mx::array& out) {
  Job job{operation_on(STANDFAST_ALL_REDUCE, in), name, in.shape()};
  job.operation.reduction = how;
  job.operation.src = in.data<char>();
  job.operation.dst = out.data<char>();
  return job;
}

// MLX keeps the arrays' memory until the tasks that it puts behind this one have run.
void enqueue(const std::shared_ptr<const Link>& link, Job job, mx::Stream stream) {
  mx::cpu::get_command_encoder(stream).dispatch(
      [link, job = std::move(job)] { link->run(job.operation, job.name, job.shape); });
}

// Thrown where the stream runs, as all that goes wrong: MLX hands it to whoever evaluates.
void refuse(std::string text, mx::Stream stream) {
  mx::cpu::get_command_encoder(stream).dispatch(
      [text = std::move(text)] { throw std::invalid_argument(text); });
}

bool refuses_complex(const char* name, const mx::array& in, mx::Stream stream) {
  if (in.dtype() != mx::complex64) return false;
  refuse(std::string("standfast: ") + name + " of complex64: complex numbers have no order",
         stream);
  return true;
}

}  // namespace

void learn_splitter(void* callable) {
  Py_XINCREF(static_cast<PyObject*>(callable));
  splitter = static_cast<PyObject*>(callable);
}

Group::Group(std::shared_ptr<const Link> link) : link_(std::move(link)) {
  Register& all = Register::one();
  const std::lock_guard lock(all.mutex);
  all.alive.insert(static_cast<const GroupImpl*>(this));
}

Group::~Group() {
  Register& all = Register::one();
  const std::lock_guard lock(all.mutex);
  all.alive.erase(static_cast<const GroupImpl*>(this));
}

const Group* Group::of(const mx::distributed::Group& group) {
  const GroupImpl* raw = group.raw_group().get();
  Register& all = Register::one();
  const std::lock_guard lock(all.mutex);
  return all.alive.contains(raw) ? static_cast<const Group*>(raw) : nullptr;
}

mx::Stream Group::communication_stream(mx::StreamOrDevice s) {
  const mx::Stream chosen = mx::to_stream(s, mx::Device::cpu);
  // The data passes through memory that the processor reads: there is no work here for another
  // device.
  return chosen.device == mx::Device::cpu ? chosen : mx::default_stream(mx::Device::cpu);
}

std::shared_ptr<mx::distributed::detail::GroupImpl> Group::split(int color, int key) {
  const nb::gil_scoped_acquire gil;
  const nb::object made = nb::borrow(splitter)(serial(), color, key);
  return nb::cast<mx::distributed::Group&>(made).raw_group();
}

void Group::all_sum(const mx::array& in, mx::array& out, mx::Stream s) {
  enqueue(link_, reduction(STANDFAST_SUM, "all_sum", in, out), s);
}

void Group::all_max(const mx::array& in, mx::array& out, mx::Stream s) {
  if (refuses_complex("all_max", in, s)) return;
  enqueue(link_, reduction(STANDFAST_MAX, "all_max", in, out), s);
}

void Group::all_min(const mx::array& in, mx::array& out, mx::Stream s) {
  if (refuses_complex("all_min", in, s)) return;
  enqueue(link_, reduction(STANDFAST_MIN, "all_min", in, out), s);
}

void Group::all_gather(const mx::array& in, mx::array& out, mx::Stream s) {
  Job job{operation_on(STANDFAST_ALL_GATHER, in), "all_gather", in.shape()};
  job.operation.src = in.data<char>();
  job.operation.dst = out.data<char>();
  enqueue(link_, std::move(job), s);
}

void Group::sum_scatter(const mx::array& in, mx::array& out, mx::Stream s) {
  Job job{operation_on(STANDFAST_REDUCE_SCATTER, out), "sum_scatter", in.shape()};
  job.operation.src = in.data<char>();
  job.operation.dst = out.data<char>();
  enqueue(link_, std::move(job), s);
}

void Group::send(const mx::array& in, int dst, mx::Stream s) {
  if (dst == rank()) {
    refuse("standfast: send to rank " + std::to_string(dst) + ", which is this rank itself", s);
    return;
  }
  Job job{operation_on(STANDFAST_SEND, in), "send", in.shape()};
  job.operation.src = in.data<char>();
  job.operation.peer = dst;
  enqueue(link_, std::move(job), s);
}

void Group::recv(mx::array& out, int src, mx::Stream s) {
  if (src == rank()) {
    refuse("standfast: recv from rank " + std::to_string(src) + ", which is this rank itself", s);
    return;
  }
  Job job{operation_on(STANDFAST_RECV, out), "recv", out.shape()};
  job.operation.dst = out.data<char>();
  job.operation.peer = src;
  enqueue(link_, std::move(job), s);
}

}  // namespace standfast_mlx
