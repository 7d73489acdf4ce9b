// The rules of control/machine, each with its row: what a rank's machine saw, and what it decided
// when.
#include "core/control/machine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace standfast {
namespace {

constexpr std::uint32_t kGeneration = 7;
constexpr Nanos kReason = Machine::kReasonGrace;
constexpr Nanos kAnswer = Machine::kAnswerGrace;
constexpr Nanos kLastWords = Machine::kLastWordsGrace;
constexpr Nanos kPoll = Machine::kPollGrace;

using Kind = VerdictKind;

Verdict verdict(Kind kind, int rank, int reporter = -1, std::string cause = "seen") {
  Verdict made;
  made.kind = kind;
  made.rank = rank;
  made.reporter = reporter;
  made.cause = std::move(cause);
  return made;
}

Event frame_event(int from, FrameType type, Verdict said, bool suspicion = false) {
  Event event;
  event.kind = Event::Kind::kFrame;
  event.rank = from;
  event.frame.type = type;
  event.frame.generation = kGeneration;
  event.frame.suspicion = suspicion;
  event.frame.verdict = std::move(said);
  return event;
}

Event goodbye(int rank) {
  return frame_event(rank, FrameType::kGoodbye,
                     verdict(Kind::kNone, rank, rank, "closed its group"));
}
Event interrupted(int rank) {
  return frame_event(rank, FrameType::kGoodbye, verdict(Kind::kLeft, rank, rank, "interrupted"));
}
// Rank 0 says that somebody left.
Event left(int rank) { return frame_event(0, FrameType::kLeft, verdict(Kind::kNone, rank, 0)); }
Event decided(Kind kind, int rank) {
  return frame_event(0, FrameType::kVerdict, verdict(kind, rank, 0));
}
Event report(int from, Kind kind, int rank) {
  return frame_event(from, FrameType::kReport, verdict(kind, rank, from));
}
Event suspicion(int from, int rank) {
  return frame_event(from, FrameType::kReport, verdict(Kind::kLinkLost, rank, from), true);
}
Event gone_report(int from, int rank) {
  return frame_event(from, FrameType::kReport, verdict(Kind::kDied, rank, from), true);
}
Event local(Kind kind, int rank, bool is_suspicion = false) {
  Event event = frame_event(-1, FrameType::kReport, verdict(kind, rank), is_suspicion);
  event.kind = Event::Kind::kLocal;
  return event;
}
Event drained(Event event) {
  event.drained = true;
  return event;
}
Event broken(int rank) { return local(Kind::kLinkLost, rank, true); }
// This rank itself says goodbye.
Event leaving(int rank) {
  Event event = goodbye(rank);
  event.kind = Event::Kind::kLeaving;
  return event;
}
Event link_ended(int rank) { return {Event::Kind::kLinkEnded, rank, {}, "closed without goodbye"}; }
Event process_gone(int rank) {
  return {Event::Kind::kProcessGone, rank, {}, "its process 123 ended"};
}
Event of_generation(std::uint32_t generation, Event event) {
  event.frame.generation = generation;
  return event;
}

struct Step {
  Nanos at;
  Event event;
};

struct Outcome {
  Kind kind = Kind::kNone;
  int rank = -1;
  Nanos at = kNever;

  bool operator==(const Outcome&) const = default;
};

std::string text(const Outcome& outcome) {
  return std::string(verdict_name(outcome.kind)) + " of rank " + std::to_string(outcome.rank) +
         " at " + std::to_string(outcome.at);
}

constexpr Outcome kNothing{};

struct Row {
  const char* rule;
  int here;
  std::vector<Step> steps;
  Outcome expected;
};

// A machine with a clock of its own: ticks come when the machine asks for them.
class Rig {
 public:
  explicit Rig(int here, int size = 4) : machine_({here, size, kGeneration}) {}

  void step(Nanos at, const Event& event) {
    tick_until(at);
    now_ = at;
    take(machine_.step(event, now_));
  }
  // To the end of all graces.
  void finish() { tick_until(kNever); }

  Machine& machine() { return machine_; }
  const Outcome& outcome() const { return outcome_; }
  const Verdict& verdict() const { return verdict_; }
  const std::vector<Actions::Send>& sends() const { return sends_; }
  void forget_sends() { sends_.clear(); }
  int verdicts() const { return verdicts_; }
  int count(FrameType type, int to) const {
    return static_cast<int>(std::count_if(
        sends_.begin(), sends_.end(),
        [&](const Actions::Send& send) { return send.frame.type == type && send.to == to; }));
  }

 private:
  void tick_until(Nanos limit) {
    for (int ticks = 0; machine_.wakes_at() < limit; ++ticks) {
      REQUIRE(ticks < 100);
      REQUIRE(machine_.wakes_at() >= now_);
      now_ = machine_.wakes_at();
      take(machine_.step({}, now_));
    }
  }
  void take(Actions actions) {
    if (actions.verdict) {
      ++verdicts_;
      outcome_ = {actions.verdict->kind, actions.verdict->rank, now_};
      verdict_ = *actions.verdict;
    }
    for (auto& send : actions.sends) sends_.push_back(std::move(send));
  }

  Machine machine_;
  Nanos now_ = 0;
  Outcome outcome_;
  Verdict verdict_;
  std::vector<Actions::Send> sends_;
  int verdicts_ = 0;
};

void check_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const std::string rule = row.rule;
    CAPTURE(rule);
    Rig rig(row.here);
    for (const Step& step : row.steps) rig.step(step.at, step.event);
    rig.finish();
    CAPTURE(text(rig.outcome()));
    CHECK(rig.outcome() == row.expected);
    CHECK(rig.verdicts() == (row.expected == kNothing ? 0 : 1));
    CHECK(rig.machine().is_decided() == (row.expected != kNothing));
    CHECK(rig.machine().wakes_at() == kNever);
  }
}

}  // namespace

// Rank 0 decides at once about what needs no explanation.
TEST_CASE("machine: what rank 0 decides at once") {
  check_rows({
      {"a link that ends without goodbye", 0, {{5, link_ended(2)}}, {Kind::kDied, 2, 5}},
      {"a process of this host that ended", 0, {{5, process_gone(2)}}, {Kind::kDied, 2, 5}},
      {"an interrupted goodbye", 0, {{5, interrupted(2)}}, {Kind::kLeft, 2, 5}},
      {"an exception", 0, {{5, report(2, Kind::kFailed, 2)}}, {Kind::kFailed, 2, 5}},
      {"an abort", 0, {{5, report(2, Kind::kAborted, 2)}}, {Kind::kAborted, 2, 5}},
      {"a message mismatch",
       0,
       {{5, report(2, Kind::kMessageMismatch, 3)}},
       {Kind::kMessageMismatch, 3, 5}},
      {"a wait that took too long",
       0,
       {{5, report(2, Kind::kNoProgress, 3)}},
       {Kind::kNoProgress, 3, 5}},
      {"a wait for who has left", 0, {{5, report(2, Kind::kLeft, 3)}}, {Kind::kLeft, 3, 5}},
      {"no memory", 0, {{5, report(2, Kind::kInternal, 2)}}, {Kind::kInternal, 2, 5}},
      {"what rank 0 itself reports", 0, {{5, local(Kind::kAborted, 0)}}, {Kind::kAborted, 0, 5}},
      {"a rank that reports rank 0", 0, {{5, report(1, Kind::kLeft, 0)}}, {Kind::kLeft, 0, 5}},
  });
}

// Who said goodbye may end its link and its process whenever it likes.
TEST_CASE("machine: an orderly leaver is never an error by itself") {
  check_rows({
      {"goodbye", 0, {{5, goodbye(2)}}, kNothing},
      {"this rank's own goodbye", 0, {{5, leaving(0)}}, kNothing},
      {"goodbye, link end", 0, {{5, goodbye(2)}, {6, link_ended(2)}}, kNothing},
      {"goodbye, process end", 0, {{5, goodbye(2)}, {6, process_gone(2)}}, kNothing},
      {"goodbye, then another sees the process end",
       0,
       {{5, goodbye(2)}, {6, link_ended(2)}, {7, gone_report(1, 2)}},
       kNothing},
      {"another sees the process end before the goodbye is read",
       0,
       {{5, gone_report(1, 2)}, {6, goodbye(2)}, {7, link_ended(2)}},
       kNothing},
      {"rank 0's goodbye, link end, process end",
       1,
       {{5, goodbye(0)}, {6, link_ended(0)}, {7, process_gone(0)}},
       kNothing},
      {"told that it left, process end", 1, {{5, left(2)}, {6, process_gone(2)}}, kNothing},
      {"process end seen before it is told that it left",
       1,
       {{5, process_gone(2)}, {6, left(2)}},
       kNothing},
      {"process end, and rank 0 is slow to tell", 1, {{5, process_gone(2)}}, kNothing},
      {"process end after rank 0 has left and can't tell",
       1,
       {{5, goodbye(0)}, {6, link_ended(0)}, {7, process_gone(2)}},
       kNothing},
  });
}

// A broken data wire waits for its reason, and gets the reason's name if that comes in time.
TEST_CASE("machine: the reason of a suspicion") {
  check_rows({
      {"no reason", 0, {{5, suspicion(1, 2)}}, {Kind::kLinkLost, 2, 5 + kReason}},
      {"no reason, seen by rank 0", 0, {{5, broken(2)}}, {Kind::kLinkLost, 2, 5 + kReason}},
      {"then its link ends", 0, {{5, suspicion(1, 2)}, {9, link_ended(2)}}, {Kind::kDied, 2, 9}},
      {"then its process ends",
       0,
       {{5, suspicion(1, 2)}, {9, process_gone(2)}},
       {Kind::kDied, 2, 9}},
      {"then it says goodbye", 0, {{5, suspicion(1, 2)}, {9, goodbye(2)}}, {Kind::kLeft, 2, 9}},
      {"then it is interrupted",
       0,
       {{5, suspicion(1, 2)}, {9, interrupted(2)}},
       {Kind::kLeft, 2, 9}},
      {"then its exception comes",
       0,
       {{5, suspicion(1, 2)}, {9, report(2, Kind::kFailed, 2)}},
       {Kind::kFailed, 2, 9}},
      {"it had said goodbye before",
       0,
       {{5, goodbye(2)}, {6, link_ended(2)}, {9, suspicion(1, 2)}},
       {Kind::kLeft, 2, 9}},
      {"rank 0 itself leaves", 0, {{5, suspicion(1, 0)}, {9, leaving(0)}}, {Kind::kLeft, 0, 9}},
      {"rank 0 itself has left", 0, {{5, leaving(0)}, {9, suspicion(1, 0)}}, {Kind::kLeft, 0, 9}},
      {"the reason comes on the last nanosecond",
       0,
       {{5, suspicion(1, 2)}, {4 + kReason, link_ended(2)}},
       {Kind::kDied, 2, 4 + kReason}},
      {"the reason comes too late",
       0,
       {{5, suspicion(1, 2)}, {6 + kReason, link_ended(2)}},
       {Kind::kLinkLost, 2, 5 + kReason}},
      {"a second one does not prolong the first",
       0,
       {{5, suspicion(1, 2)}, {9, suspicion(3, 2)}},
       {Kind::kLinkLost, 2, 5 + kReason}},
      {"of two ranks the first one stands",
       0,
       {{5, suspicion(1, 2)}, {9, suspicion(2, 1)}},
       {Kind::kLinkLost, 2, 5 + kReason}},
      {"another rank is the reason",
       0,
       {{5, suspicion(1, 2)}, {9, link_ended(3)}},
       {Kind::kDied, 3, 9}},
      {"it leaves, but another suspicion stands",
       0,
       {{5, gone_report(1, 2)}, {9, suspicion(1, 3)}, {10, goodbye(2)}},
       {Kind::kLinkLost, 3, 9 + kReason}},
  });
}

// A process that another rank saw end is dead once its link is, or after a moment, since that may
// take long: what it said before is read by then.
TEST_CASE("machine: a process that ended on another host than rank 0's") {
  check_rows({
      {"its link ends", 0, {{5, gone_report(1, 2)}, {9, link_ended(2)}}, {Kind::kDied, 2, 9}},
      {"its link stays", 0, {{5, gone_report(1, 2)}}, {Kind::kDied, 2, 5 + kLastWords}},
      {"somebody waits for it, and it leaves",
       0,
       {{5, gone_report(1, 2)}, {6, suspicion(3, 2)}, {9, goodbye(2)}},
       {Kind::kLeft, 2, 9}},
      {"somebody waits for it, and its link stays",
       0,
       {{5, suspicion(3, 2)}, {6, gone_report(1, 2)}},
       {Kind::kDied, 2, 6 + kLastWords}},
      {"all that it said was read before",
       0,
       {{5, drained(gone_report(1, 2))}},
       {Kind::kDied, 2, 5}},
      {"all that it said was read before, and it had left",
       0,
       {{5, goodbye(2)}, {6, drained(gone_report(1, 2))}},
       kNothing},
      {"its exception is read in the last moment",
       0,
       {{5, gone_report(1, 2)}, {4 + kLastWords, report(2, Kind::kFailed, 2)}},
       {Kind::kFailed, 2, 4 + kLastWords}},
  });
}

// A rank other than 0 asks rank 0, and decides alone only if no answer comes.
TEST_CASE("machine: what the other ranks decide") {
  check_rows({
      {"rank 0's link ends", 1, {{5, link_ended(0)}}, {Kind::kDied, 0, 5}},
      {"rank 0's process ends", 1, {{5, process_gone(0)}}, {Kind::kDied, 0, 5}},
      {"rank 0 is interrupted", 1, {{5, interrupted(0)}}, {Kind::kLeft, 0, 5}},
      {"rank 0 has decided", 1, {{5, decided(Kind::kDied, 2)}}, {Kind::kDied, 2, 5}},
      {"about this very rank", 1, {{5, decided(Kind::kDied, 1)}}, {Kind::kDied, 1, 5}},
      {"its report, answered",
       1,
       {{5, local(Kind::kMismatch, 2)}, {9, decided(Kind::kMismatch, 2)}},
       {Kind::kMismatch, 2, 9}},
      {"its suspicion, answered with the reason",
       1,
       {{5, broken(2)}, {9, decided(Kind::kDied, 2)}},
       {Kind::kDied, 2, 9}},
      {"its report, answered with something else",
       1,
       {{5, local(Kind::kNoProgress, 2)}, {9, decided(Kind::kDied, 3)}},
       {Kind::kDied, 3, 9}},
      {"its report, never answered",
       1,
       {{5, local(Kind::kMismatch, 2)}},
       {Kind::kMismatch, 2, 5 + kAnswer}},
      {"its suspicion, never answered", 1, {{5, broken(2)}}, {Kind::kLinkLost, 2, 5 + kAnswer}},
      {"its suspicion, never answered, of who has left",
       1,
       {{5, broken(2)}, {9, left(2)}},
       {Kind::kLeft, 2, 5 + kAnswer}},
      {"its suspicion, never answered, of a process that ended",
       1,
       {{5, broken(2)}, {9, process_gone(2)}},
       {Kind::kDied, 2, 5 + kAnswer}},
      {"rank 0 dies before it answers",
       1,
       {{5, broken(2)}, {9, link_ended(0)}},
       {Kind::kDied, 0, 9}},
      {"a wire to rank 0 breaks because rank 0 died",
       1,
       {{5, broken(0)}, {9, link_ended(0)}},
       {Kind::kDied, 0, 9}},
  });
}

// Once rank 0 has left in good order, each rank decides alone, by the same rules.
TEST_CASE("machine: without a coordinator") {
  const Step bye{1, goodbye(0)};
  const Step end{2, link_ended(0)};
  check_rows({
      {"a broken wire", 1, {bye, end, {5, broken(2)}}, {Kind::kLinkLost, 2, 5 + kReason}},
      {"a broken wire to a process that ended",
       1,
       {bye, end, {5, process_gone(2)}, {9, broken(2)}},
       {Kind::kDied, 2, 9}},
      {"a broken wire, then the process ends",
       1,
       {bye, end, {5, broken(2)}, {9, process_gone(2)}},
       {Kind::kDied, 2, 5 + kReason}},
      {"a broken wire to who was known to have left",
       1,
       {{0, left(2)}, bye, end, {5, broken(2)}},
       {Kind::kLeft, 2, 5}},
      {"a report", 1, {bye, end, {5, local(Kind::kLeft, 2)}}, {Kind::kLeft, 2, 5}},
      {"an abort", 1, {bye, end, {5, local(Kind::kAborted, 1)}}, {Kind::kAborted, 1, 5}},
      {"it has left but still coordinates",
       1,
       {bye, {5, broken(2)}, {9, decided(Kind::kDied, 2)}},
       {Kind::kDied, 2, 9}},
      {"it leaves without an answer",
       1,
       {{0, broken(2)}, bye, end},
       {Kind::kLinkLost, 2, 0 + kAnswer}},
  });
}

// Frames that are not for this group, not from rank 0 where they must be, or about nobody change
// nothing.
TEST_CASE("machine: what is not believed") {
  check_rows({
      {"another generation's goodbye does not excuse a death",
       0,
       {{5, of_generation(6, goodbye(2))}, {6, link_ended(2)}},
       {Kind::kDied, 2, 6}},
      {"another generation's report",
       0,
       {{5, of_generation(8, report(2, Kind::kFailed, 2))}},
       kNothing},
      {"another generation's verdict",
       1,
       {{5, of_generation(6, decided(Kind::kDied, 2))}},
       kNothing},
      {"a verdict that is not rank 0's",
       0,
       {{5, frame_event(2, FrameType::kVerdict, verdict(Kind::kDied, 1))}},
       kNothing},
      {"a report that is not for rank 0", 1, {{5, report(0, Kind::kFailed, 2)}}, kNothing},
      {"a report about nobody", 0, {{5, report(2, Kind::kFailed, -1)}}, kNothing},
      {"a report about a rank that is not", 0, {{5, report(2, Kind::kFailed, 4)}}, kNothing},
      {"a leaver that is not", 1, {{5, left(4)}, {6, left(-1)}}, kNothing},
  });
}

// The first verdict wins: whatever comes later changes and sends nothing.
TEST_CASE("machine: the first verdict is the last") {
  for (const int here : {0, 1}) {
    CAPTURE(here);
    Rig rig(here);
    rig.step(5, here == 0 ? link_ended(2) : decided(Kind::kDied, 2));
    REQUIRE(rig.verdicts() == 1);
    rig.forget_sends();
    for (const Event& event :
         {broken(3), local(Kind::kAborted, here), process_gone(3), report(3, Kind::kFailed, 3),
          link_ended(here == 0 ? 3 : 0), decided(Kind::kMismatch, 3)}) {
      rig.step(9, event);
    }
    rig.finish();
    CHECK(rig.verdicts() == 1);
    CHECK(rig.outcome() == Outcome{Kind::kDied, 2, 5});
    for (const auto& send : rig.sends()) CHECK(send.frame.type != FrameType::kVerdict);
    CHECK(rig.machine().wakes_at() == kNever);
  }
}

// Rank 0 tells its verdict to everybody whose link is up, the accused included, in this generation.
TEST_CASE("machine: a verdict is told to all") {
  Rig rig(0, 5);
  rig.step(1, goodbye(4));
  rig.step(2, link_ended(4));
  rig.forget_sends();
  rig.step(5, report(1, Kind::kNoProgress, 2));
  REQUIRE(rig.sends().size() == 3);
  for (int rank = 1; rank <= 3; ++rank) {
    CAPTURE(rank);
    CHECK(rig.count(FrameType::kVerdict, rank) == 1);
  }
  for (const auto& send : rig.sends()) {
    CHECK(send.frame.generation == kGeneration);
    CHECK(send.frame.verdict.kind == Kind::kNoProgress);
    CHECK(send.frame.verdict.rank == 2);
    CHECK(send.frame.verdict.reporter == 1);
    CHECK(send.frame.verdict.cause == "seen");
  }
}

// Rank 0 tells a goodbye to everybody but the leaver, and the leaver counts as left everywhere.
TEST_CASE("machine: a goodbye is told to all others") {
  Rig zero(0);
  zero.step(5, goodbye(2));
  CHECK(zero.sends().size() == 2);
  CHECK(zero.count(FrameType::kLeft, 1) == 1);
  CHECK(zero.count(FrameType::kLeft, 3) == 1);
  CHECK(zero.machine().has_left(2));
  CHECK_FALSE(zero.machine().has_left(1));

  Rig one(1);
  one.step(5, {Event::Kind::kFrame, 0, zero.sends().front().frame, {}});
  CHECK(one.machine().has_left(2));
  CHECK(one.sends().empty());
}

// A rank's report goes to rank 0 as it was made, and so does the verdict it had to find alone.
TEST_CASE("machine: reports go to rank 0") {
  Rig rig(2);
  rig.step(5, broken(3));
  REQUIRE(rig.sends().size() == 1);
  CHECK(rig.sends()[0].to == 0);
  CHECK(rig.sends()[0].frame.type == FrameType::kReport);
  CHECK(rig.sends()[0].frame.suspicion);
  CHECK(rig.sends()[0].frame.verdict.rank == 3);
  CHECK(rig.machine().wakes_at() == 5 + kAnswer);
  rig.forget_sends();
  rig.finish();
  REQUIRE(rig.sends().size() == 1);
  CHECK(rig.sends()[0].to == 0);
  CHECK(rig.sends()[0].frame.type == FrameType::kReport);
  CHECK_FALSE(rig.sends()[0].frame.suspicion);
  CHECK(rig.sends()[0].frame.verdict.kind == Kind::kLinkLost);
}

// A suspicion about a rank that has said goodbye is reported as what it is: that rank left.
TEST_CASE("machine: a wire broken by a goodbye is no lost link") {
  Rig rig(1);
  rig.step(1, goodbye(0));
  rig.step(5, broken(0));
  REQUIRE(rig.sends().size() == 1);
  CHECK(rig.sends()[0].frame.verdict.kind == Kind::kLeft);
  CHECK_FALSE(rig.sends()[0].frame.suspicion);
}

// A process's end is told to rank 0 as a suspicion: only rank 0 knows whether a goodbye came first.
TEST_CASE("machine: a process's end is reported, unless its rank has left") {
  Rig rig(1);
  rig.step(5, process_gone(2));
  REQUIRE(rig.sends().size() == 1);
  CHECK(rig.sends()[0].to == 0);
  CHECK(rig.sends()[0].frame.suspicion);
  CHECK(rig.sends()[0].frame.verdict.kind == Kind::kDied);
  rig.forget_sends();
  rig.step(6, left(3));
  rig.step(7, process_gone(3));
  CHECK(rig.sends().empty());
}

// What others saw of the accused comes with the verdict as evidence.
TEST_CASE("machine: evidence") {
  Rig rig(0);
  rig.step(5, frame_event(1, FrameType::kReport, verdict(Kind::kLinkLost, 2, 1, "wire A"), true));
  rig.step(6, frame_event(3, FrameType::kReport, verdict(Kind::kLinkLost, 2, 3, "wire B"), true));
  rig.step(7, suspicion(2, 1));  // not about the accused
  rig.step(9, link_ended(2));
  CHECK(rig.verdict().kind == Kind::kDied);
  CHECK(rig.verdict().cause == "control link closed without goodbye");
  CHECK(rig.verdict().evidence == std::vector<std::string>{"rank 1: wire A", "rank 3: wire B"});
}

// However many ranks complain, evidence stays bounded.
TEST_CASE("machine: evidence is bounded") {
  Rig rig(0, 100);
  for (int rank = 2; rank < 100; ++rank) rig.step(5, suspicion(rank, 1));
  rig.finish();
  CHECK(rig.verdict().evidence.size() <= 8);
}

// There is a tick to wait for only while a suspicion runs.
TEST_CASE("machine: when it wants to wake") {
  Rig rig(0);
  CHECK(rig.machine().wakes_at() == kNever);
  rig.step(5, suspicion(1, 2));
  CHECK(rig.machine().wakes_at() == 5 + kReason);
  rig.step(7, suspicion(2, 1));
  CHECK(rig.machine().wakes_at() == 5 + kReason);
  rig.step(9, goodbye(3));
  CHECK(rig.machine().wakes_at() == 5 + kReason);
  rig.step(10, link_ended(2));
  CHECK(rig.machine().wakes_at() == kNever);
}

// A group of one has nobody to lose and decides what it is told itself.
TEST_CASE("machine: a group of one") {
  Rig rig(0, 1);
  CHECK(rig.machine().wakes_at() == kNever);
  rig.step(5, local(Kind::kAborted, 0));
  CHECK(rig.outcome() == Outcome{Kind::kAborted, 0, 5});
  CHECK(rig.sends().empty());
}

}  // namespace standfast
