#include "bind/jaccl.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/jaccl/station.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {
namespace {

using jaccl::Berth;
using jaccl::Form;
using jaccl::Frames;
using jaccl::Layout;
using jaccl::Record;
using jaccl::Station;

// peer, device, port, address.
using BerthRow = std::tuple<int, std::string, int, std::string>;

std::vector<Berth> berths_of(const std::vector<BerthRow>& rows) {
  std::vector<Berth> berths;
  for (const auto& [peer, device, port, address] : rows) {
    berths.push_back({peer, device, port, address});
  }
  return berths;
}

nb::tuple packed(const Record& record) {
  return nb::make_tuple(record.lid, record.queue_pair, record.psn,
                        nb::bytes(record.gid.raw, sizeof record.gid.raw));
}

Record unpacked(const std::tuple<int, std::uint32_t, std::uint32_t, nb::bytes>& from) {
  const auto& [lid, queue_pair, psn, gid] = from;
  Record record{lid, queue_pair, psn, {}};
  if (gid.size() != sizeof record.gid.raw) throw nb::value_error("a GID has 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(gid.data()), gid.size(), record.gid.raw);
  return record;
}

}  // namespace

void define_jaccl(nb::module_& m) {
  nb::class_<EngineBox>(m, "JacclEngine",
                        "JACCL's operations over connected queue pairs; a Group takes it.");
  // lock_self(): as in verbs.cpp.
  nb::class_<Station>(
      m, "JacclStation",
      "This rank's queue pairs while a JACCL group is being formed. Calls may raise VerbsError.\n\n"
      "berths: (peer, device, port, address or \"\") of each, in JACCL's order: for a mesh by rank,"
      " for a\nring all to the left, then all to the right. A record is (lid, queue pair, PSN, "
      "GID).")
      .def(
          "__init__",
          [](Station* self, const std::string& library, const std::vector<BerthRow>& berths) {
            const nb::gil_scoped_release release;
            new (self) Station(library, berths_of(berths));
          },
          nb::kw_only(), "library"_a, "berths"_a)
      .def(
          "records",
          [](Station& self) {
            nb::list made;
            for (const Record& record : self.records()) made.append(packed(record));
            return made;
          },
          nb::lock_self(), nb::sig("def records(self) -> list[tuple[int, int, int, bytes]]"))
      .def(
          "connect",
          [](Station& self, int berth,
             const std::tuple<int, std::uint32_t, std::uint32_t, nb::bytes>& theirs,
             const std::string& peer_text) {
            const Record record = unpacked(theirs);
            // A device may take its time to find that an address is not there.
            const nb::gil_scoped_release release;
            self.connect(berth, record, peer_text);
          },
          "berth"_a, "theirs"_a, nb::kw_only(), "peer_text"_a, nb::lock_self())
      .def("text", &Station::text, "berth"_a, nb::lock_self())
      .def(
          "release",
          [](Station& self, int rank, int size, bool is_ring, bool has_large_frames,
             const std::vector<int>& stock) {
            const Layout layout{rank, size, is_ring ? Form::kRing : Form::kMesh,
                                has_large_frames ? Frames::kLarge : Frames::kFourKib};
            return EngineBox{jaccl::make_engine(layout, self.release(stock))};
          },
          nb::kw_only(), "rank"_a, "size"_a, "is_ring"_a, "has_large_frames"_a, "stock"_a,
          nb::lock_self());
}

}  // namespace standfast::bind
