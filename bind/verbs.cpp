#include "bind/verbs.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/fabric/verbs/station.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {
namespace {

using verbs::Cell;
using verbs::RailAddress;
using verbs::Station;

// device, port, address.
using CellRow = std::tuple<std::string, int, std::string>;

std::map<int, std::vector<Cell>> cells_of(const std::map<int, std::vector<CellRow>>& rows) {
  std::map<int, std::vector<Cell>> cells;
  for (const auto& [peer, row] : rows) {
    for (const auto& [device, port, address] : row) cells[peer].push_back({device, port, address});
  }
  return cells;
}

nb::tuple packed(const RailAddress& end) {
  return nb::make_tuple(end.device, end.port, end.lid, nb::bytes(end.gid.raw, sizeof end.gid.raw),
                        static_cast<int>(end.gid_type), static_cast<int>(end.layer),
                        static_cast<int>(end.type), end.mtu, end.queue_pairs[0],
                        end.queue_pairs[1]);
}

using PackedEnd =
    std::tuple<std::string, int, int, nb::bytes, int, int, int, int, std::uint32_t, std::uint32_t>;

RailAddress unpacked(const PackedEnd& from) {
  const auto& [device, port, lid, gid, gid_type, layer, type, mtu, small, large] = from;
  RailAddress end;
  if (gid.size() != sizeof end.gid.raw) throw nb::value_error("a GID has 16 bytes");
  end.device = device;
  end.port = port;
  end.lid = lid;
  std::copy_n(static_cast<const std::uint8_t*>(gid.data()), sizeof end.gid.raw, end.gid.raw);
  end.gid_type = static_cast<verbs::GidType>(gid_type);
  end.layer = static_cast<verbs::LinkLayer>(layer);
  end.type = static_cast<verbs::QpType>(type);
  end.mtu = mtu;
  end.queue_pairs = {small, large};
  return end;
}

const char* layer_name(verbs::LinkLayer layer) {
  switch (layer) {
    case verbs::LinkLayer::kInfiniBand: return "InfiniBand";
    case verbs::LinkLayer::kEthernet: return "Ethernet";
    default: return "unspecified";
  }
}

const char* transport_name(verbs::Transport transport) {
  switch (transport) {
    case verbs::Transport::kThunderbolt: return "Thunderbolt";
    case verbs::Transport::kInfiniBand: return "InfiniBand";
    case verbs::Transport::kIwarp: return "iWARP";
    default: return "unknown";
  }
}

nb::dict described(const verbs::PortInfo& port) {
  nb::list gids;
  for (const verbs::GidEntry& entry : port.gids) {
    gids.append(nb::make_tuple(entry.index, verbs::text_of(entry.gid),
                               verbs::gid_type_name(entry.type), verbs::is_ipv4(entry.gid)));
  }
  nb::dict made;
  made["port"] = port.number;
  made["state"] = verbs::port_state_name(port.state);
  made["link_layer"] = layer_name(port.layer);
  made["mtu_bytes"] = verbs::mtu_bytes(port.mtu);
  made["lid"] = port.lid;
  made["gbit_per_s"] = port.gbit_per_s;
  made["gids"] = gids;
  return made;
}

nb::dict described(const verbs::DeviceInfo& device) {
  nb::list ports;
  for (const verbs::PortInfo& port : device.ports) ports.append(described(port));
  nb::dict made;
  made["name"] = device.name;
  made["transport"] = transport_name(device.transport);
  made["queue_pairs"] = device.queue_pairs;
  made["regions"] = device.regions;
  made["trouble"] = device.trouble;
  made["ports"] = ports;
  return made;
}

nb::list devices(const std::string& library) {
  const auto loaded = verbs::load_library(library);
  nb::list made;
  for (const verbs::DeviceInfo& device : verbs::list_devices(*loaded)) {
    made.append(described(device));
  }
  return made;
}

// Raised with (code, text, hint, device, error).
void define_error(nb::module_& m) {
  static PyObject* type = PyErr_NewExceptionWithDoc(
      "standfast._core.VerbsError",
      "What is wrong with RDMA; args: code, text, hint, device, and the library's number or 0.",
      PyExc_RuntimeError, nullptr);
  m.attr("VerbsError") = nb::borrow(type);
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const verbs::VerbsError& e) {
      const verbs::Trouble& it = e.trouble();
      const nb::object values = nb::make_tuple(it.code, it.text, it.hint, it.device, it.error);
      PyErr_SetObject(type, values.ptr());
    }
  });
}

}  // namespace

void define_verbs(nb::module_& m) {
  define_error(m);
  m.attr("RAILS_MAX") = verbs::kRailsMax;
  m.def("verbs_devices", &devices, "library"_a,
        nb::sig("def verbs_devices(library: str) -> list[dict[str, typing.Any]]"),
        "Describe all devices; VerbsError where there are none. library: \"\" for the system's.");
  nb::class_<RailsBox>(m, "Rails", "What carries data to one peer over RDMA; a WireSpec takes it.");
  // Where there is no GIL, lock_self() lets one thread in at a time, as the GIL does.
  nb::class_<Station>(
      m, "Station",
      "This rank's RDMA devices while a group is being formed. Every call may raise VerbsError.\n\n"
      "cells: by peer, the (device, port, address or \"\") of each rail. addresses() gives what the"
      " peer\npasses to its connect(): a tuple per rail, in the order of RailEnd. renew() makes new"
      " queue\npairs in place of those that connect() has used.")
      .def(
          "__init__",
          [](Station* self, const std::string& library,
             const std::map<int, std::vector<CellRow>>& cells) {
            const nb::gil_scoped_release release;
            new (self) Station(library, cells_of(cells));
          },
          nb::kw_only(), "library"_a, "cells"_a)
      .def(
          "addresses",
          [](Station& self, int peer, const std::vector<std::string>& likely) {
            nb::list made;
            for (const RailAddress& end : self.addresses(peer, likely)) made.append(packed(end));
            return made;
          },
          "peer"_a, nb::kw_only(), "likely"_a, nb::lock_self(),
          nb::sig("def addresses(self, peer: int, *, likely: collections.abc.Sequence[str])"
                  " -> list[tuple[str, int, int, bytes, int, int, int, int, int, int]]"))
      .def(
          "connect",
          [](Station& self, int peer, const std::vector<PackedEnd>& theirs,
             const std::string& peer_text, std::uint32_t key, bool first) {
            std::vector<RailAddress> ends;
            for (const PackedEnd& end : theirs) ends.push_back(unpacked(end));
            // A device may take its time to find that an address is not there.
            const nb::gil_scoped_release release;
            self.connect(peer, ends, peer_text, {key, first});
          },
          "peer"_a, "theirs"_a, nb::kw_only(), "peer_text"_a, "key"_a, "first"_a, nb::lock_self())
      .def("renew", &Station::renew, "peer"_a, nb::lock_self())
      .def("greet", &Station::greet, "peer"_a, nb::lock_self())
      .def("is_greeted", &Station::is_greeted, "peer"_a, nb::lock_self())
      .def("silent_rails", &Station::silent_rails, "peer"_a, nb::lock_self())
      .def("text", &Station::text, "peer"_a, nb::lock_self())
      .def(
          "release", [](Station& self, int peer) { return RailsBox{self.release(peer)}; }, "peer"_a,
          nb::lock_self());
}

}  // namespace standfast::bind
