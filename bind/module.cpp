// The module standfast._core. Converts; decides nothing. Its Python face, with the words that stand
// here, is src/standfast/_core.pyi, which `make stubs` writes; a signature is given where the C++
// types say less than is so.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/beacon.h"
#include "bind/buffer.h"
#include "bind/group_handle.h"
#include "bind/jaccl.h"
#include "bind/limits.h"
#include "bind/machine.h"
#include "bind/memory.h"
#include "bind/names.h"
#include "bind/native.h"
#include "bind/ndarray.h"
#include "bind/shortcut.h"
#include "bind/verbs.h"
#include "core/base/error.h"
#include "core/base/fault_hook.h"
#include "core/fabric/shm/segment.h"
#include "core/group.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {
namespace {

void raise_pending() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

// A WireSpec that Python can hold before a group takes it.
struct WireBox {
  WireSpec spec;
};

nb::object blob_view(std::vector<std::byte> blob) {
  auto* owned = new std::vector<std::byte>(std::move(blob));
  const nb::capsule owner(owned,
                          [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
  const std::size_t shape[1] = {owned->size()};
  return nb::cast(
      nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>(owned->data(), 1, shape, owner));
}

Result run(const GroupHandle& self, const Request& request) {
  Result result;
  {
    const nb::gil_scoped_release release;
    result = self.get().run(request, signal_raised);
  }
  raise_pending();
  return result;
}

std::size_t element_count(std::int64_t count) {
  if (count < 0) throw nb::value_error("count is negative");
  return static_cast<std::size_t>(count);
}

void define_segments(nb::module_& m) {
  m.attr("FRAME_BYTES") = kFrameBytes;
  m.attr("SHM_BYTES") = sizeof(Segment);
  m.def(
      "shm_create",
      [](int ranks_here) {
        NamedSegment made = make_segment(ranks_here);
        return std::pair(made.name, made.fd.release());
      },
      nb::kw_only(), "ranks_here"_a = 2,
      "Make a segment of SHM_BYTES, mode 0600, with a random name; return (name, descriptor).\n\n"
      "ranks_here: of how many ranks of this host the pair is one; where they are many, it takes"
      " only\nsome of its pages now. OSError if there is no room for the segments of all their"
      " pairs.");
  m.def(
      "shm_attach", [](const std::string& name) { return attach_segment(name).release(); },
      "name"_a,
      "Open a segment made by shm_create; return its descriptor. OSError if it can't be.");
  m.def("shm_unlink", &unlink_segment, "name"_a,
        "Remove the name; a name that is already gone is no error.");
  m.def("shm_sweep", &sweep_segments,
        "Remove segments whose maker's process is gone; return their names.");
  m.def("buffer_view", &buffer_view, "x"_a.none(), "writable"_a,
        nb::sig("def buffer_view(x: object, writable: bool)"
                " -> tuple[int, int, str, tuple[int, ...], bool, bool] | None"),
        "Return (address, nbytes, format, shape, c_contiguous, readonly) of a buffer, or None.");
  m.def("learn_numpy", &learn_numpy, "samples"_a, "empty"_a,
        nb::sig("def learn_numpy(samples: list[tuple[typing.Any, int]],"
                " empty: collections.abc.Callable[..., typing.Any]) -> bool"),
        "Look at (array, dtype code) samples; tell whether shortcuts can read such arrays"
        " themselves.\n\nempty: numpy.empty, which makes their results.");
  m.def("learn_numpy_dtype", &learn_numpy_dtype, "dtype"_a, "code"_a,
        "Learn a dtype that no buffer has: bfloat16.");
}

void define_descriptions(nb::module_& m) {
  nb::class_<Peer>(m, "Peer", "A member of the group, as the core needs to know it.")
      .def(
          "__init__",
          [](Peer* self, int rank, std::string host, int pid, bool same_host) {
            new (self) Peer{rank, std::move(host), pid, same_host};
          },
          "rank"_a, "host"_a, "pid"_a, "same_host"_a);
  nb::class_<WireBox>(
      m, "WireSpec",
      "A data connection that rendezvous has made; the core then owns its descriptors.\n\n"
      "fabric: \"shm\", \"tcp\" or \"verbs\". fd: the pair's connected stream socket (the doorbell,"
      " for shm).\nshm_fd: the segment, or -1. first: True on the lower rank, which sends on the"
      " first lane.\nlink: text for messages, e.g. \"shm\" or \"tcp 10.0.0.3:41234\". rails: of"
      " \"verbs\".")
      .def(
          "__init__",
          [](WireBox* self, int rank, const std::string& fabric_name, int fd, int shm_fd,
             bool first, std::string link, RailsBox* rails) {
            auto taken = rails != nullptr ? std::move(rails->link) : nullptr;
            new (self) WireBox{{rank, fabric(fabric_name), Fd(fd), Fd(shm_fd), first,
                                std::move(link), std::move(taken)}};
          },
          nb::kw_only(), "rank"_a, "fabric"_a, "fd"_a, "shm_fd"_a, "first"_a, "link"_a,
          "rails"_a.none() = nb::none());
  nb::class_<Request>(
      m, "Request",
      "One operation: what, from where, to where, how many elements. Unused addresses are 0.")
      .def(
          "__init__",
          [](Request* self, const std::string& kind, std::uintptr_t src, std::uintptr_t dst,
             std::int64_t count, int dtype, const std::string& op, int peer, std::int32_t tag,
             double timeout_s, const nb::bytes& meta) {
            auto request = std::make_unique<Request>();
            request->kind = request_kind(kind);
            request->src = reinterpret_cast<const std::byte*>(src);
            request->dst = reinterpret_cast<std::byte*>(dst);
            request->count = element_count(count);
            if (dtype < 0 || dtype >= kDTypeCount) throw nb::value_error("no such dtype");
            request->dtype = static_cast<DType>(dtype);
            request->op = reduce_op(op);
            request->peer = peer;
            request->tag = tag;
            if (timeout_s > 0) request->timeout = from_seconds(timeout_s);
            const std::byte* bytes = as_bytes(meta.data());
            request->meta.assign(bytes, bytes + meta.size());
            new (self) Request(std::move(*request));
          },
          nb::kw_only(), "kind"_a, "src"_a = 0, "dst"_a = 0, "count"_a = 0,
          "dtype"_a = static_cast<int>(Request{}.dtype), "op"_a = "sum", "peer"_a = 0, "tag"_a = 0,
          "timeout_s"_a = 0.0, "meta"_a = nb::bytes("", 0))
      .def_ro("peer", &Request::peer)
      .def_ro("tag", &Request::tag);
}

void define_failure(nb::module_& m) {
  nb::class_<Failure>(
      m, "Failure",
      "Why an operation did not end well. kind is a key of errors.BY_KIND, or \"interrupted\".")
      .def_prop_ro("kind",
                   [](const Failure& f) {
                     return f.interrupted ? "interrupted" : verdict_name(f.verdict.kind);
                   })
      .def_prop_ro("rank", [](const Failure& f) { return f.verdict.rank; })
      .def_prop_ro("reporter", [](const Failure& f) { return f.verdict.reporter; })
      .def_prop_ro("cause", [](const Failure& f) { return f.verdict.cause; })
      .def_prop_ro("evidence", [](const Failure& f) { return f.verdict.evidence; })
      .def_prop_ro("remote_type", [](const Failure& f) { return f.verdict.remote_type; })
      .def_prop_ro("remote_message", [](const Failure& f) { return f.verdict.remote_message; })
      .def_prop_ro("remote_traceback", [](const Failure& f) { return f.verdict.remote_traceback; })
      .def_prop_ro("detected_ns", [](const Failure& f) { return f.verdict.detected_ns; })
      .def_ro("op", &Failure::op)
      .def_ro("seq", &Failure::seq)
      .def_ro("waiting_for", &Failure::waiting_for)
      .def_ro("waited_s", &Failure::waited_s)
      .def_ro("bytes_done", &Failure::bytes_done)
      .def_ro("bytes_total", &Failure::bytes_total);
}

void define_pending(nb::module_& m) {
  nb::class_<Group::Pending>(m, "Pending", "An operation handed to the core's own threads.")
      .def("done", &Group::Pending::is_done)
      .def(
          "wait",
          [](Group::Pending& self, double timeout_s) {
            bool interrupted = false;
            bool done = false;
            {
              const nb::gil_scoped_release release;
              done = self.wait(from_seconds(timeout_s), signal_raised, &interrupted);
            }
            raise_pending();
            return done;
          },
          "timeout_s"_a,
          "Wait without the GIL; False when the time ran out. A signal handler may raise.")
      .def("failure", [](const Group::Pending& self) { return self.result().failure; })
      .def_prop_ro(
          "source", [](const Group::Pending& self) { return self.result().from; },
          "The rank that a receive from any took its message from; else -1.")
      .def(
          "blob", [](const Group::Pending& self) { return blob_view(self.result().blob); },
          nb::sig("def blob(self) -> memoryview"));
}

GroupConfig group_config(int rank, int size, int generation, const std::vector<Peer>& peers,
                         const std::vector<std::pair<int, int>>& control,
                         const std::vector<WireBox*>& wires) {
  GroupConfig config;
  for (const auto& [peer, fd] : control) config.control.emplace_back(peer, Fd(fd));
  for (WireBox* wire : wires) config.wires.push_back(std::move(wire->spec));
  if (size < 1 || size > kRanksMax || rank < 0 || rank >= size) {
    throw nb::value_error("rank or size is out of range");
  }
  config.shape = {rank, size, static_cast<std::uint32_t>(generation)};
  config.peers = peers;
  return config;
}

// heartbeat, hint, silence, progress (0: off), startup.
using Limits_s = std::tuple<double, double, double, double, double>;

WatchLimits watch_limits(const Limits_s& seconds) {
  const auto& [heartbeat, hint, silence, progress, startup] = seconds;
  return {.heartbeat = from_seconds(heartbeat),
          .hint = from_seconds(hint),
          .silence = from_seconds(silence),
          .progress = progress > 0 ? from_seconds(progress) : kNever,
          .startup = from_seconds(startup)};
}

void define_hint(nb::module_& m) {
  nb::class_<Hint>(
      m, "Hint",
      "What one rank sees of another. kind: see hints.Hint. since_ns: when this rank heard of it.")
      .def_prop_ro("kind", [](const Hint& hint) { return hint_name(hint.kind); })
      .def_ro("rank", &Hint::rank)
      .def_ro("reporter", &Hint::reporter)
      .def_ro("cause", &Hint::cause)
      .def_ro("evidence", &Hint::evidence)
      .def_ro("since_ns", &Hint::since_ns);
}

void define_group(nb::module_& m) {
  nb::class_<GroupHandle>(m, "Group",
                          "The native group: wires, wait, watch. Closed and freed by close().")
      .def(
          "__init__",
          [](GroupHandle* self, int rank, int size, int generation, const std::vector<Peer>& peers,
             const std::vector<std::pair<int, int>>& control, const std::vector<WireBox*>& wires,
             const std::string& topology_name, bool verify, int ranks_here, const Limits_s& limits,
             double close_linger_s, bool exit_on_fault, double exit_grace_s, bool handle_sigterm,
             bool logs, int beacon_fd, std::string sentinel, EngineBox* jaccl,
             std::vector<int> stock) {
            GroupConfig config = group_config(rank, size, generation, peers, control, wires);
            config.topology = topology(topology_name);
            config.verify = verify;
            config.ranks_here = ranks_here;
            config.limits = watch_limits(limits);
            config.logs = logs;
            config.beacon = Fd(beacon_fd);
            config.sentinel = std::move(sentinel);
            if (jaccl != nullptr) config.jaccl = std::move(jaccl->engine);
            config.stock = std::move(stock);
            config.close_linger = from_seconds(close_linger_s);
            config.exit_on_fault = exit_on_fault;
            config.exit_grace = from_seconds(exit_grace_s);
            config.handle_sigterm = handle_sigterm;
            new (self) GroupHandle(std::move(config));
          },
          nb::kw_only(), "rank"_a, "size"_a, "generation"_a, "peers"_a, "control"_a, "wires"_a,
          "topology"_a, "verify"_a, "ranks_here"_a, "limits_s"_a, "close_linger_s"_a,
          "exit_on_fault"_a, "exit_grace_s"_a, "handle_sigterm"_a, "logs"_a, "beacon_fd"_a,
          "sentinel"_a, "jaccl"_a.none() = nb::none(), "stock"_a = std::vector<int>{})
      // Without names, a call is a little quicker.
      .def(
          "run",
          [](const GroupHandle& self, const Request& request) {
            return run(self, request).failure;
          },
          nb::sig("def run(self, request: Request, /) -> Failure | None"),
          "Run one operation in this thread, without the GIL; None when it is done.")
      .def(
          "run_blob",
          [](const GroupHandle& self, const Request& request) {
            Result result = run(self, request);
            return result.failure ? nb::cast(std::move(*result.failure))
                                  : blob_view(std::move(result.blob));
          },
          nb::sig("def run_blob(self, request: Request, /) -> Failure | memoryview"),
          "As run, where only the sender knows the size: recv_bytes, gather_bytes, scatter.")
      .def(
          "submit",
          [](const GroupHandle& self, const Request& request) {
            auto pending = self.get().submit(request);
            if (!pending) throw std::runtime_error("too many operations are waiting in this group");
            return pending;
          },
          nb::sig("def submit(self, request: Request, /) -> Pending"),
          "Queue an operation behind those submitted before; returns at once.")
      .def(
          "completion_fd", [](const GroupHandle& self) { return self.get().completion_fd(); },
          "A descriptor that becomes readable whenever a submitted operation ends.")
      .def("drain_completions", [](const GroupHandle& self) { self.get().drain_completions(); })
      .def(
          "sentinel_trouble", [](const GroupHandle& self) { return self.get().sentinel_trouble(); },
          "Why nobody stands in for the neighbours of a rank that has none, or \"\".")
      .def("native", &native_of, "rank"_a, "size"_a,
           nb::sig("def native(self, rank: int, size: int) -> object"),
           "A capsule by which native code of others runs operations: include/standfast/native.h.")
      .def(
          "hints", [](const GroupHandle& self) { return self.get().hints(); },
          "What is suspect at the moment; all ranks have the same.")
      .def(
          "await_news",
          [](const GroupHandle& self, std::uint64_t seen, double timeout_s) {
            const nb::gil_scoped_release release;
            return self.get().await_news(seen, from_seconds(timeout_s));
          },
          "seen"_a, "timeout_s"_a,
          "Sleep without the GIL until the counter of news differs from `seen`; return it.\n\n"
          "News: hints began or ended, there is a verdict, the group closes.")
      .def(
          "beat",
          [](const GroupHandle& self, std::string label, std::uint64_t step) {
            self.get().program_beats(std::move(label), step);
          },
          "label"_a, "step"_a,
          "The program's own progress, where it does not use the group's operations.")
      .def(
          "idle", [](const GroupHandle& self) { self.get().program_idles(); },
          "The program has nothing to do: no progress is expected of it until the next beat.")
      .def("healthy", [](const GroupHandle& self) { return self.get().is_healthy(); })
      .def(
          "failure", [](const GroupHandle& self) { return self.get().failure(); },
          "The group's first cause, or None.")
      .def(
          "taken", [](const GroupHandle& self) { self.get().taken(); },
          "The failure has reached the program: the exit timer is off from here on.")
      .def(
          "abort",
          [](const GroupHandle& self, std::string reason) {
            const nb::gil_scoped_release release;
            self.get().abort(std::move(reason));
          },
          "reason"_a)
      .def(
          "fail",
          [](const GroupHandle& self, std::string type, std::string message,
             std::string traceback) {
            self.get().fail(std::move(type), std::move(message), std::move(traceback));
          },
          "type"_a, "message"_a, "traceback"_a, "Tell the peers that this rank's program raised.")
      .def(
          "close",
          [](const GroupHandle& self, const std::string& how) {
            const Watch::Goodbye way = goodbye(how);
            const nb::gil_scoped_release release;
            return self.get().close(way);
          },
          "how"_a,
          "End the group: how is \"orderly\", \"interrupted\" or \"failed\"; returns how it "
          "ended.");
}

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const SystemError& e) {
    const nb::object text = nb::str(e.what());
    const nb::object values = nb::make_tuple(e.code(), text);
    PyErr_SetObject(PyExc_OSError, values.ptr());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The native core, as Python sees it (made by bind/). group.py and rendezvous/ call it.";
  // A traceback that is still held when the interpreter ends keeps its group: usual here, and no
  // leak of ours.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  define_segments(m);
  define_memory(m);
  define_verbs(m);
  define_jaccl(m);
  define_descriptions(m);
  define_failure(m);
  define_pending(m);
  define_beacon(m);
  define_hint(m);
  define_group(m);
  define_shortcut(m);
  define_machine(m);
  define_limits(m);
  m.def(
      "damage_next", [](bool on) { damages_next = on; }, "on"_a,
      "For tests: let the next comparison of results find damage.");
  m.def(
      "throw_in",
      [](const std::string& thread) {
        const bool watch = thread == "watch";
        if (!watch && thread != "worker") throw nb::value_error("no such thread");
        thread_to_fail = watch ? ThreadKind::kWatch : ThreadKind::kWorker;
      },
      "thread"_a, "For tests: let one of the core's own threads, watch or worker, fail.");
}

}  // namespace standfast::bind
