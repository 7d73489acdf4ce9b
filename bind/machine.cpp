#include "bind/machine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/control/machine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace standfast::bind {
namespace {

constexpr std::uint32_t kGeneration = 1;

// In the order of their enums.
constexpr std::array kEvents = {"frame", "link_ended", "link_expired", "process_gone",
                                "local", "leaving",    "tick"};
constexpr std::array kFrames = {"",     "goodbye", "report", "verdict",  "left",
                                "beat", "ask",     "hint",   "hint_over"};
constexpr int kVerdictKinds = static_cast<int>(VerdictKind::kInternal) + 1;

template <std::size_t N>
int position(const std::array<const char*, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  throw std::invalid_argument("no such name: " + std::string(name));
}

VerdictKind verdict_kind(std::string_view name) {
  for (int i = 0; i < kVerdictKinds; ++i) {
    if (name == verdict_name(static_cast<VerdictKind>(i))) return static_cast<VerdictKind>(i);
  }
  throw std::invalid_argument("no such verdict: " + std::string(name));
}

// What a rank does: collectives begun, the rank it waits for (-1: none), for how long.
using StatusTuple = std::tuple<std::uint32_t, int, Nanos>;
// Of a peer: when its data came, when its host had acknowledged everything.
using SightTuple = std::tuple<Nanos, Nanos>;

Status status_of(const StatusTuple& told) {
  const auto& [started, waiting_for, waited] = told;
  Status status;
  status.started = started;
  Activity& half = status.halves[0];
  for (std::uint32_t number = 1; number <= started; ++number) {
    half.tag.seq = number;
    half.tag.kind = OpKind::kBarrier;
    status.digest = digest_after(status.digest, half.tag);
  }
  half.running = waiting_for >= 0;
  half.waiting_for = waiting_for;
  half.waited = waited;
  return status;
}

using Sent = std::tuple<int, std::string, std::string, int>;
using Answer = std::tuple<std::vector<Sent>, std::optional<std::tuple<std::string, int>>,
                          std::vector<std::tuple<std::string, int>>, std::vector<int>>;

Answer answer_of(const Actions& actions) {
  Answer answer;
  for (const auto& [to, frame] : actions.sends) {
    std::get<0>(answer).emplace_back(to, kFrames[static_cast<std::size_t>(frame.type)],
                                     verdict_name(frame.verdict.kind), frame.verdict.rank);
  }
  if (actions.verdict) {
    std::get<1>(answer).emplace(verdict_name(actions.verdict->kind), actions.verdict->rank);
  }
  for (const Hint& hint : actions.hints) {
    std::get<2>(answer).emplace_back(hint_name(hint.kind), hint.rank);
  }
  std::get<3>(answer) = actions.hints_over;
  return answer;
}

Event event_of(const std::string& kind, int rank, const std::string& frame,
               const std::string& verdict, int about, bool suspicion, const StatusTuple& status) {
  Event event;
  event.kind = static_cast<Event::Kind>(position(kEvents, kind));
  event.rank = rank;
  event.text = "seen by a test";
  event.frame.type =
      frame.empty() ? FrameType::kReport : static_cast<FrameType>(position(kFrames, frame));
  event.frame.generation = kGeneration;
  event.frame.suspicion = suspicion;
  event.frame.verdict.kind = verdict_kind(verdict);
  event.frame.verdict.rank = event.frame.hint.rank = about;
  event.frame.verdict.reporter = rank;
  event.frame.hint.kind = HintKind::kSilent;
  event.frame.status = status_of(status);
  return event;
}

}  // namespace

void define_machine(nb::module_& m) {
  nb::class_<Machine>(
      m, "Machine",
      "The watch's rules: a pure function of state, event and time, in nanoseconds. For tests.")
      .def(
          "__init__",
          [](Machine* self, int rank, int size, Nanos heartbeat, Nanos hint, Nanos silence,
             Nanos progress) {
            new (self) Machine(
                {rank, size, kGeneration},
                {.heartbeat = heartbeat, .hint = hint, .silence = silence, .progress = progress});
          },
          nb::kw_only(), "rank"_a, "size"_a, "heartbeat"_a, "hint"_a, "silence"_a, "progress"_a)
      .def(
          "step",
          [](Machine& self, const std::string& kind, Nanos now, int rank, const std::string& frame,
             const std::string& verdict, int about, bool suspicion, const StatusTuple& status,
             const std::vector<SightTuple>& seen) {
            Event event = event_of(kind, rank, frame, verdict, about, suspicion, status);
            std::vector<Sight> sights;
            for (const auto& [data_at, acked_at] : seen) {
              Sight sight;
              sight.data_at = data_at;
              sight.acked_at = acked_at;
              sights.push_back(sight);
            }
            event.sights = sights.empty() ? nullptr : &sights;
            return answer_of(self.step(event, now));
          },
          "kind"_a, "now"_a, nb::kw_only(), "rank"_a = -1, "frame"_a = "", "verdict"_a = "none",
          "about"_a = -1, "suspicion"_a = false, "status"_a = StatusTuple{0, -1, 0},
          "sights"_a = std::vector<SightTuple>{}, nb::lock_self(),
          "Return (sends, verdict, hints, hints over).\n\n"
          "A send is (to, frame, verdict kind, about); a verdict or hint is (kind, rank).\n"
          "status: collectives begun, the rank that is waited for or -1, for how long.\n"
          "sights, by rank: when its data came, when its host had acknowledged everything.")
      .def("wakes_at", &Machine::wakes_at)
      .def("is_review_due", &Machine::is_review_due, "now"_a)
      .def("is_decided", &Machine::is_decided);
}

}  // namespace standfast::bind
