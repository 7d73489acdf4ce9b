// The rules of control/review.cpp: what time brings to light, and who judges whom. A machine is
// told what a rank's thread would see, beat by beat.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/control/board.h"
#include "core/control/machine.h"

namespace standfast {
namespace {

using Kind = VerdictKind;

constexpr std::uint32_t kGeneration = 7;
constexpr WatchLimits kLimits = {.heartbeat = 500 * kMillisecond,
                                 .hint = 3 * kSecond,
                                 .silence = 20 * kSecond,
                                 .progress = 60 * kSecond};
constexpr Nanos kStep = 100 * kMillisecond;

// What a peer of the machine under test does, as the test wishes it.
struct Peer {
  bool beats = true;
  bool acknowledges = true;
  bool sends_data = false;
  char process = 0;
  Status status;
  int subject = -1;  // in its beats
  Nanos data_age = kNever;
};

class Rig {
 public:
  Rig(int here, int size, WatchLimits limits = kLimits)
      : peers(static_cast<std::size_t>(size)),
        here_(here),
        limits_(limits),
        machine_({here, size, kGeneration}, limits),
        sights_(static_cast<std::size_t>(size)) {}

  std::vector<Peer> peers;  // this rank's own status as well

  Peer& peer(int rank) { return peers[static_cast<std::size_t>(rank)]; }

  // Everybody beats and the machine looks, as its peers are.
  void run(Nanos span) {
    const Nanos end = now + span;
    while (now < end) {
      now += kStep;
      for (std::size_t rank = 0; rank < peers.size(); ++rank) age(peers[rank].status);
      if ((now / kStep) % 5 == 0) beat();
      tick();
    }
  }
  // Nothing happens here: this thread does not run.
  void sleep(Nanos span) {
    now += span;
    for (Peer& each : peers) age(each.status, span);
  }
  void tick() {
    Event event;
    if (machine_.is_review_due(now)) {
      for (std::size_t rank = 0; rank < peers.size(); ++rank) {
        if (peers[rank].acknowledges) sights_[rank].acked_at = now;
        if (peers[rank].sends_data) sights_[rank].data_at = now;
        sights_[rank].process = peers[rank].process;
      }
      event.frame.status = peer(here_).status;
      event.sights = &sights_;
    }
    tell(event);
  }
  void tell(const Event& event) {
    Actions actions = machine_.step(event, now);
    CHECK(machine_.wakes_at() >= now);
    if (actions.verdict) {
      REQUIRE_FALSE(decided);
      decided = true;
      verdict = *actions.verdict;
      decided_at = now;
    }
    for (const int rank : actions.hints_over) {
      std::erase_if(hints, [&](const Hint& hint) { return hint.rank == rank; });
    }
    for (Hint& hint : actions.hints) {
      std::erase_if(hints, [&](const Hint& old) { return old.rank == hint.rank; });
      hints.push_back(std::move(hint));
    }
    if (!actions.warning.empty()) warnings.emplace_back(now, actions.warning);
    for (auto& send : actions.sends) sends.push_back(std::move(send));
  }
  void frame(int from, Frame said) {
    Event event;
    event.kind = Event::Kind::kFrame;
    event.rank = from;
    event.frame = std::move(said);
    event.frame.generation = kGeneration;
    tell(event);
  }
  void beat_of(int rank) {
    Frame said;
    said.type = FrameType::kBeat;
    said.status = peer(rank).status;
    said.subject = peer(rank).subject;
    said.data_age = peer(rank).data_age;
    frame(rank, said);
  }
  HintKind hint_of(int rank) const {
    for (const Hint& hint : hints) {
      if (hint.rank == rank) return hint.kind;
    }
    return HintKind::kNone;
  }
  int count(FrameType type, int to) const {
    return static_cast<int>(std::count_if(sends.begin(), sends.end(), [&](const auto& send) {
      return send.frame.type == type && send.to == to;
    }));
  }
  void check_decided(Kind kind, int rank, Nanos least, Nanos most) const {
    REQUIRE(decided);
    CHECK(std::string(verdict_name(verdict.kind)) == verdict_name(kind));
    CHECK(verdict.rank == rank);
    CHECK(decided_at >= least);
    CHECK(decided_at <= most);
  }

  Nanos now = 1000 * kSecond;
  bool decided = false;
  Verdict verdict;
  Nanos decided_at = 0;
  std::vector<Hint> hints;
  std::vector<std::pair<Nanos, std::string>> warnings;
  std::vector<Actions::Send> sends;

 private:
  static void age(Status& status, Nanos span = kStep) {
    for (Activity& half : status.halves) {
      if (half.waits()) half.waited += span;
    }
    if (status.program.busy) status.program.age += span;
  }
  void beat() {
    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      const bool is_linked = here_ == 0 || rank == 0;
      if (static_cast<int>(rank) == here_ || !is_linked || !peers[rank].beats) continue;
      beat_of(static_cast<int>(rank));
    }
  }

  const int here_;
  const WatchLimits limits_;
  Machine machine_;
  std::vector<Sight> sights_;
};

Tag collective(std::uint32_t number, std::uint64_t count = 8) {
  Tag tag;
  tag.seq = number;
  tag.kind = OpKind::kAllReduce;
  tag.dtype = DType::kFloat32;
  tag.count = count;
  return tag;
}

// This rank is in its `number`th collective, and waits for `rank`; -1: it does not wait.
void enter(Status& status, std::uint32_t number, int rank, std::uint64_t count = 8) {
  status.started = number;
  status.finished = number - 1;
  status.digest = 0;
  for (std::uint32_t each = 1; each <= number; ++each) {
    status.digest = digest_after(status.digest, collective(each, each == number ? count : 8));
  }
  status.halves[0].tag = collective(number, count);
  status.halves[0].running = true;
  status.halves[0].waiting_for = rank;
  status.halves[0].waited = 0;
}
void finish(Status& status) {
  status.finished = status.started;
  status.halves[0].running = false;
  status.halves[0].waiting_for = -1;
  status.halves[0].waited = 0;
}
void receive_from(Status& status, int rank) {
  status.halves[0].tag.kind = OpKind::kSend;
  status.halves[0].tag.seq = 1;
  status.halves[0].tag.count = 1;
  status.halves[0].running = true;
  status.halves[0].waiting_for = rank;
  status.halves[0].waited = 0;
}

bool has(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != text.npos; });
}

}  // namespace

// A group that says nothing but its beats is well, for hours.
TEST_CASE("review: an idle group") {
  for (const int here : {0, 1}) {
    Rig rig(here, 4);
    rig.run(3600 * kSecond);
    CHECK_FALSE(rig.decided);
    CHECK(rig.hints.empty());
    CHECK(rig.warnings.empty());
    CHECK(rig.count(FrameType::kBeat, here == 0 ? 1 : 0) >= 7000);
    CHECK(rig.count(FrameType::kBeat, 2) == (here == 0 ? rig.count(FrameType::kBeat, 1) : 0));
  }
}

// Silence: first a hint, told to all, then a verdict. Whether the host answers tells a frozen rank
// from one that cannot be reached.
TEST_CASE("review: a silent rank") {
  struct Row {
    bool acknowledges;
    HintKind hint;
    Kind kind;
  };
  for (const Row& row : {Row{true, HintKind::kFrozen, Kind::kStalled},
                         Row{false, HintKind::kUnreachable, Kind::kUnreachable}}) {
    CAPTURE(row.acknowledges);
    Rig rig(0, 4);
    rig.run(10 * kSecond);
    const Nanos since = rig.now;
    rig.peer(2).beats = false;
    rig.peer(2).acknowledges = row.acknowledges;
    rig.run(3 * kSecond);
    CHECK(rig.hint_of(2) == row.hint);
    CHECK(rig.hints.size() == 1);
    CHECK(rig.hints[0].reporter == 0);
    CHECK(has(rig.hints[0].evidence, "last beat 2."));
    for (const int rank : {1, 2, 3}) CHECK(rig.count(FrameType::kHint, rank) == 1);
    rig.run(16 * kSecond);
    CHECK_FALSE(rig.decided);
    rig.run(4 * kSecond);
    rig.check_decided(row.kind, 2, since + 20 * kSecond - kStep, since + 21 * kSecond);
    CHECK(has(rig.verdict.evidence, "last beat 20 s ago"));
    CHECK(has(rig.verdict.evidence, "all sent to it was acknowledged"));
    for (const int rank : {1, 3}) CHECK(rig.count(FrameType::kVerdict, rank) == 1);
  }
}

// A stopped process says so in the evidence, where its state is known.
TEST_CASE("review: what is known of a process") {
  for (const auto& [state, text] : {std::pair<char, const char*>{'T', "stopped (by a signal"},
                                    {'t', "stopped by a debugger"},
                                    {'D', "uninterruptible"}}) {
    Rig rig(0, 2);
    rig.run(1 * kSecond);
    rig.peer(1).beats = false;
    rig.peer(1).process = state;
    rig.run(25 * kSecond);
    REQUIRE(rig.decided);
    CHECK(has(rig.verdict.evidence, text));
  }
}

// Who beats again before the limit is forgiven, and everybody is told.
TEST_CASE("review: back in time") {
  Rig rig(0, 3);
  rig.run(5 * kSecond);
  rig.peer(1).beats = false;
  rig.run(19 * kSecond);
  CHECK(rig.hint_of(1) == HintKind::kFrozen);
  rig.peer(1).beats = true;
  rig.run(60 * kSecond);
  CHECK_FALSE(rig.decided);
  CHECK(rig.hints.empty());
  CHECK(rig.count(FrameType::kHintOver, 2) == 1);
}

// A rank that goes on after a pause sends data at once, and its next beat a little later: its
// control link is not cut.
TEST_CASE("review: data before the next beat") {
  Rig rig(0, 3);
  rig.run(5 * kSecond);
  rig.peer(1).beats = false;
  rig.run(4 * kSecond);
  REQUIRE(rig.hint_of(1) == HintKind::kFrozen);
  rig.peer(1).sends_data = true;
  rig.run(1 * kSecond);
  CHECK(rig.hints.empty());
  SUBCASE("the beat comes") {
    rig.peer(1).beats = true;
    rig.run(10 * kSecond);
    CHECK(rig.hints.empty());
  }
  SUBCASE("the beat does not come") {
    rig.run(3 * kSecond);
    CHECK(rig.hint_of(1) == HintKind::kCut);
  }
}

// Data counts as life, whoever sees it: rank 0 asks the others about a rank that is silent.
TEST_CASE("review: data is life") {
  Rig own(0, 3);
  own.run(1 * kSecond);
  own.peer(1).beats = false;
  own.peer(1).sends_data = true;
  own.run(100 * kSecond);
  CHECK_FALSE(own.decided);

  Rig told(0, 3);
  told.run(1 * kSecond);
  told.peer(1).beats = false;
  told.run(3 * kSecond);
  CHECK(told.sends.back().frame.type == FrameType::kBeat);
  CHECK(told.sends.back().frame.subject == 1);
  told.peer(2).subject = 1;
  told.peer(2).data_age = 200 * kMillisecond;
  told.run(100 * kSecond);
  CHECK_FALSE(told.decided);
  const Nanos since = told.now;
  told.peer(2).data_age = kNever;
  told.run(30 * kSecond);
  told.check_decided(Kind::kStalled, 1, since + 19 * kSecond, since + 22 * kSecond);
}

// Other ranks answer with what they know of the one that rank 0 asks about.
TEST_CASE("review: an answer about a silent rank") {
  Rig rig(1, 3);
  rig.peer(0).subject = 2;
  rig.peer(2).sends_data = true;
  rig.run(5 * kSecond);
  rig.peer(2).sends_data = false;
  rig.run(2 * kSecond);
  const Frame& beat = rig.sends.back().frame;
  CHECK(beat.type == FrameType::kBeat);
  CHECK(beat.subject == 2);
  CHECK(beat.data_age >= 1 * kSecond);
  CHECK(beat.data_age <= 3 * kSecond);
}

// Several silent ranks are asked about in turn.
TEST_CASE("review: silent ranks take turns") {
  Rig rig(0, 5);
  rig.run(1 * kSecond);
  rig.peer(2).beats = rig.peer(4).beats = false;
  rig.sends.clear();
  rig.run(5 * kSecond);
  std::vector<int> asked;
  for (const auto& send : rig.sends) {
    if (send.to == 1 && send.frame.subject >= 0) asked.push_back(send.frame.subject);
  }
  REQUIRE(asked.size() >= 4);
  for (std::size_t i = 1; i < asked.size(); ++i) CHECK(asked[i] == 6 - asked[i - 1]);
}

// Rank 0 is judged by all others, each for itself, and nobody else is judged by them.
TEST_CASE("review: who judges whom") {
  for (const bool acknowledges : {true, false}) {
    Rig rig(2, 4);
    rig.run(5 * kSecond);
    const Nanos since = rig.now;
    rig.peer(0).beats = false;
    rig.peer(0).acknowledges = acknowledges;
    rig.run(30 * kSecond);
    rig.check_decided(acknowledges ? Kind::kStalled : Kind::kUnreachable, 0,
                      since + 20 * kSecond - kStep, since + 21 * kSecond);
    CHECK(rig.count(FrameType::kReport, 0) == 1);  // if rank 0 is only slow, it shall know
  }
}

// A wire that breaks because its end gave a silent rank 0 up is not the reason: rank 0 is.
TEST_CASE("review: whoever gives rank 0 up first is not to blame") {
  for (const bool link_expires : {false, true}) {
    CAPTURE(link_expires);
    Rig rig(2, 4);
    rig.run(5 * kSecond);
    const Nanos since = rig.now;
    rig.peer(0).beats = false;
    rig.run(19 * kSecond + 800 * kMillisecond);
    if (link_expires) rig.tell({Event::Kind::kLinkExpired, 0, {}, "broke: recv: ETIMEDOUT"});
    Event broken;
    broken.kind = Event::Kind::kLocal;
    broken.rank = 2;
    broken.frame.type = FrameType::kReport;
    broken.frame.generation = kGeneration;
    broken.frame.suspicion = true;
    broken.frame.verdict.kind = Kind::kLinkLost;
    broken.frame.verdict.rank = 3;
    broken.frame.verdict.reporter = 2;
    rig.tell(broken);
    rig.tell({Event::Kind::kProcessGone, 3, {}, "its process ended"});
    rig.run(5 * kSecond);
    rig.check_decided(Kind::kStalled, 0, since + 20 * kSecond - kStep, since + 22 * kSecond);
  }
}

// A rank 0 that did not run for long believes those who gave it up; one that ran knows better.
TEST_CASE("review: given up by others") {
  Frame report;
  report.type = FrameType::kReport;
  report.verdict.kind = Kind::kStalled;
  report.verdict.rank = 0;
  report.verdict.reporter = 2;
  report.verdict.cause = "no sign of life for 20 s";

  Rig awake(0, 4);
  awake.run(60 * kSecond);
  awake.frame(2, report);
  awake.check_decided(Kind::kUnreachable, 2, awake.now, awake.now);
  CHECK(awake.verdict.cause == "it does not hear rank 0");
  CHECK(has(awake.verdict.evidence, "rank 2: no sign of life for 20 s"));

  Rig slept(0, 4);
  slept.run(60 * kSecond);
  slept.sleep(25 * kSecond);
  slept.frame(2, report);
  slept.check_decided(Kind::kStalled, 0, slept.now, slept.now);
}

// A thread that was late accuses nobody for that time: nobody could be heard.
TEST_CASE("review: lateness") {
  for (const int here : {0, 1}) {
    Rig rig(here, 4);
    rig.run(10 * kSecond);
    for (int nap = 0; nap < 20; ++nap) {
      rig.sleep(15 * kSecond);
      rig.tick();
      CHECK(rig.hints.empty());
      rig.run(1 * kSecond);
    }
    rig.sleep(100 * kSecond);  // the machine was suspended
    rig.tick();
    rig.run(2 * kSecond);
    CHECK_FALSE(rig.decided);
    CHECK(rig.hints.empty());
  }
  // Who is silent all the same is found all the same.
  Rig rig(0, 3);
  rig.run(10 * kSecond);
  rig.peer(1).beats = false;
  const Nanos since = rig.now;
  rig.run(10 * kSecond);
  rig.sleep(8 * kSecond);
  rig.run(15 * kSecond);
  rig.check_decided(Kind::kStalled, 1, since + 27 * kSecond, since + 30 * kSecond);
}

// A control link that the network gave up is no death while data flows, and a verdict when that
// ends.
TEST_CASE("review: a control link is cut") {
  Rig rig(0, 3);
  rig.run(10 * kSecond);
  rig.peer(1).beats = false;
  rig.peer(1).acknowledges = false;
  rig.peer(1).sends_data = true;
  rig.run(5 * kSecond);
  rig.tell({Event::Kind::kLinkExpired, 1, {}, "broke: recv: ETIMEDOUT"});
  CHECK_FALSE(rig.decided);
  rig.run(60 * kSecond);
  CHECK_FALSE(rig.decided);
  CHECK(rig.hint_of(1) == HintKind::kCut);
  const Nanos since = rig.now;
  rig.peer(1).sends_data = false;
  rig.run(30 * kSecond);
  rig.check_decided(Kind::kUnreachable, 1, since + 19 * kSecond, since + 22 * kSecond);
}

// An expiry of a link to who had left says nothing.
TEST_CASE("review: an expired link to who has left") {
  Rig rig(0, 3);
  rig.run(1 * kSecond);
  Frame goodbye;
  goodbye.type = FrameType::kGoodbye;
  rig.frame(1, goodbye);
  rig.peer(1).beats = rig.peer(1).acknowledges = false;
  rig.tell({Event::Kind::kLinkExpired, 1, {}, "broke: recv: ETIMEDOUT"});
  rig.run(100 * kSecond);
  CHECK_FALSE(rig.decided);
  CHECK(rig.hints.empty());
}

// A rank that lives and does not come is late; one that came and does not go on is wedged. After
// the progress limit either has stalled.
TEST_CASE("review: the root of the waiting") {
  struct Row {
    const char* rule;
    std::function<void(Rig&)> begin;
    HintKind hint;
    int root;
    const char* cause;
  };
  const Row rows[] = {
      {"it did not begin",
       [](Rig& rig) {
         for (const int rank : {0, 1, 2}) enter(rig.peer(rank).status, 5, (rank + 3) % 4);
         enter(rig.peer(3).status, 4, -1);
         finish(rig.peer(3).status);
       },
       HintKind::kLate, 3, "it lives, but did not begin all_sum float32[8] #5"},
      {"it began and does not go on",
       [](Rig& rig) {
         for (const int rank : {0, 1, 2}) enter(rig.peer(rank).status, 5, (rank + 3) % 4);
         enter(rig.peer(3).status, 5, -1);
       },
       HintKind::kWedged, 3, "it lives, but does not get on with all_sum float32[8] #5"},
      {"a chain of messages",
       [](Rig& rig) {
         receive_from(rig.peer(0).status, 1);
         receive_from(rig.peer(1).status, 2);
       },
       HintKind::kLate, 2, "it lives, but did not begin recv(tag=0)"},
      {"rank 0 itself",
       [](Rig& rig) {
         for (const int rank : {1, 2, 3}) enter(rig.peer(rank).status, 5, rank - 1);
         enter(rig.peer(0).status, 5, -1);
       },
       HintKind::kWedged, 0, "it lives, but does not get on with"},
  };
  for (const Row& row : rows) {
    const std::string rule = row.rule;
    CAPTURE(rule);
    Rig rig(0, 4);
    rig.run(1 * kSecond);
    const Nanos since = rig.now;
    row.begin(rig);
    rig.run(3 * kSecond);
    CHECK(rig.hint_of(row.root) == row.hint);
    CHECK(rig.hints.size() == 1);
    CHECK(rig.count(FrameType::kHint, 1) == 1);
    rig.run(56 * kSecond);
    CHECK_FALSE(rig.decided);
    rig.run(5 * kSecond);
    rig.check_decided(Kind::kStalled, row.root, since + 60 * kSecond, since + 62 * kSecond);
    CHECK(rig.verdict.cause.find(row.cause) == 0);
    CHECK(has(rig.verdict.evidence, "waited 6"));
  }
}

// Many who did not come are told together.
TEST_CASE("review: many are late") {
  Rig rig(0, 6);
  enter(rig.peer(0).status, 5, 5);
  enter(rig.peer(3).status, 5, 2);
  rig.run(70 * kSecond);
  REQUIRE(rig.decided);
  CHECK(rig.verdict.kind == Kind::kStalled);
  CHECK(rig.verdict.rank == 1);
  CHECK(has(rig.verdict.evidence, "the same holds for ranks [1, 2, 4, 5]"));
}

// Who gets on is no longer late, and everybody is told.
TEST_CASE("review: late, and then it comes") {
  Rig rig(0, 3);
  rig.run(1 * kSecond);
  enter(rig.peer(0).status, 5, 2);
  enter(rig.peer(1).status, 5, 0);
  enter(rig.peer(2).status, 4, -1);
  finish(rig.peer(2).status);
  rig.run(30 * kSecond);
  CHECK(rig.hint_of(2) == HintKind::kLate);
  for (const int rank : {0, 1}) {
    enter(rig.peer(rank).status, 5, -1);
    finish(rig.peer(rank).status);
  }
  enter(rig.peer(2).status, 5, -1);
  finish(rig.peer(2).status);
  rig.run(100 * kSecond);
  CHECK_FALSE(rig.decided);
  CHECK(rig.hints.empty());
  CHECK(rig.count(FrameType::kHintOver, 1) == 1);
}

// All wait for each other: no rank is at fault, and what all are in is told.
TEST_CASE("review: a circle") {
  Rig rig(0, 3);
  const Nanos since = rig.now;
  receive_from(rig.peer(0).status, 1);
  receive_from(rig.peer(1).status, 2);
  receive_from(rig.peer(2).status, 0);
  rig.run(70 * kSecond);
  REQUIRE(rig.decided);
  CHECK(rig.verdict.kind == Kind::kNoProgress);
  CHECK(rig.verdict.cause.find("all ranks wait for each other in a circle") != std::string::npos);
  CHECK(rig.decided_at - since <= 62 * kSecond);
}

// A silent rank at the root has a limit of its own.
TEST_CASE("review: a frozen root") {
  WatchLimits limits = kLimits;
  limits.silence = 100 * kSecond;
  Rig rig(0, 3, limits);
  rig.run(1 * kSecond);
  const Nanos since = rig.now;
  rig.peer(2).beats = false;
  enter(rig.peer(0).status, 1, 2);
  enter(rig.peer(1).status, 1, 0);
  rig.run(90 * kSecond);
  CHECK_FALSE(rig.decided);
  CHECK(rig.hint_of(2) == HintKind::kFrozen);
  rig.run(20 * kSecond);
  rig.check_decided(Kind::kStalled, 2, since + 99 * kSecond, since + 102 * kSecond);
}

// A rank that has not begun anything gets the start-up grace; one that has does not.
TEST_CASE("review: start-up grace") {
  for (const bool has_begun : {false, true}) {
    CAPTURE(has_begun);
    WatchLimits limits = kLimits;
    limits.startup = 300 * kSecond;
    Rig rig(0, 2, limits);
    if (has_begun) {
      enter(rig.peer(1).status, 1, -1);
      finish(rig.peer(1).status);
      enter(rig.peer(0).status, 2, 1);
    } else {
      enter(rig.peer(0).status, 1, 1);
    }
    const Nanos since = rig.now;
    rig.run(310 * kSecond);
    const Nanos limit = has_begun ? limits.progress : limits.startup;
    rig.check_decided(Kind::kStalled, 1, since + limit, since + limit + 2 * kSecond);
  }
}

// Programs that tell their own progress are held to it: the one that is furthest behind is named.
TEST_CASE("review: program beats") {
  Rig rig(0, 3);
  rig.run(1 * kSecond);
  for (const int rank : {0, 1, 2}) {
    rig.peer(rank).status.program = {true, rank == 1 ? 7u : 8u, 0, "decode"};
  }
  const Nanos since = rig.now;
  rig.run(10 * kSecond);
  CHECK(rig.hint_of(1) == HintKind::kWedged);
  CHECK(rig.hints.size() == 1);
  rig.run(60 * kSecond);
  rig.check_decided(Kind::kStalled, 1, since + 60 * kSecond, since + 62 * kSecond);
  CHECK(rig.verdict.cause == "its program beat last with \"decode\" 7, 61 s ago");

  Rig idle(0, 3);
  idle.peer(1).status.program = {false, 7, 0, "decode"};
  idle.run(1000 * kSecond);
  CHECK_FALSE(idle.decided);
  CHECK(idle.hints.empty());
}

// As many collectives, but not the same ones: all sides are told, and asked first.
TEST_CASE("review: another history") {
  Rig rig(0, 4);
  rig.run(1 * kSecond);
  const Nanos since = rig.now;
  for (const int rank : {0, 2}) enter(rig.peer(rank).status, 5, rank + 1);
  for (const int rank : {1, 3}) enter(rig.peer(rank).status, 5, 0, 9);
  rig.run(1 * kSecond);
  rig.run(1 * kSecond);
  REQUIRE(rig.decided);
  CHECK(rig.verdict.kind == Kind::kMismatch);
  CHECK(rig.decided_at - since <= 2 * kSecond);
  for (const int rank : {1, 2, 3}) CHECK(rig.count(FrameType::kAsk, rank) >= 1);
  CHECK(rig.verdict.cause ==
        "ranks [0, 2] are in all_sum float32[8] #5, ranks [1, 3] are in all_sum float32[9] #5");
  CHECK(has(rig.verdict.evidence, "collectives up to #5 are not the same"));
}

// A disagreement that two ranks saw is told once all ranks have said what they are in, and not
// later.
TEST_CASE("review: all are asked what they are in") {
  Rig rig(0, 4);
  rig.run(1 * kSecond + kStep);
  enter(rig.peer(0).status, 5, 3);
  enter(rig.peer(1).status, 5, 0);
  enter(rig.peer(2).status, 5, 1, 9);
  enter(rig.peer(3).status, 5, 2);
  Frame report;
  report.type = FrameType::kReport;
  report.verdict.kind = Kind::kMismatch;
  report.verdict.rank = 2;
  report.verdict.reporter = 3;
  report.verdict.cause = "what rank 3 saw";
  const Nanos since = rig.now;
  rig.frame(3, report);
  CHECK_FALSE(rig.decided);
  rig.tick();
  rig.now += 1 * kMillisecond;
  for (const int rank : {1, 2, 3}) rig.beat_of(rank);
  rig.tick();
  REQUIRE(rig.decided);
  CHECK(rig.decided_at - since <= 25 * kMillisecond);
  CHECK(rig.verdict.cause ==
        "ranks [0, 1, 3] are in all_sum float32[8] #5, rank 2 is in all_sum float32[9] #5");
  CHECK(rig.verdict.evidence.at(0) == "what rank 3 saw");
}

// An ask is answered at once, not at the next beat.
TEST_CASE("review: an ask is answered") {
  Rig rig(2, 4);
  rig.run(1 * kSecond + kStep);
  rig.sends.clear();
  Frame ask;
  ask.type = FrameType::kAsk;
  rig.frame(0, ask);
  rig.tick();
  CHECK(rig.count(FrameType::kBeat, 0) == 1);
}

// Who waits says for whom, in ever longer intervals.
TEST_CASE("review: warnings") {
  WatchLimits limits = kLimits;
  limits.progress = 10'000 * kSecond;
  Rig rig(1, 4, limits);
  rig.run(1 * kSecond);
  enter(rig.peer(1).status, 42, 0);
  Frame hint;
  hint.type = FrameType::kHint;
  hint.hint = {HintKind::kLate, 2, 0, "late", {}, 0};
  rig.frame(0, hint);
  hint.hint.rank = 3;
  rig.frame(0, hint);
  rig.run(100 * kSecond);
  REQUIRE(rig.warnings.size() >= 5);
  CHECK(rig.warnings.size() <= 7);
  CHECK(rig.warnings[0].second.find("waiting for ranks [2, 3] in all_sum float32[8] #42 for 3") ==
        0);
  for (std::size_t i = 2; i < rig.warnings.size(); ++i) {
    CHECK(rig.warnings[i].first - rig.warnings[i - 1].first >=
          (rig.warnings[i - 1].first - rig.warnings[i - 2].first) * 3 / 2);
  }
  CHECK_FALSE(rig.decided);
}

// Hints that rank 0 tells are shown, and nobody ends by them; others' are not believed.
TEST_CASE("review: hints of rank 0") {
  Rig rig(1, 4);
  rig.run(1 * kSecond);
  Frame hint;
  hint.type = FrameType::kHint;
  hint.hint = {HintKind::kFrozen, 3, 0, "frozen", {"a", "b"}, 0};
  rig.frame(0, hint);
  CHECK(rig.hint_of(3) == HintKind::kFrozen);
  CHECK(rig.hints.at(0).evidence.size() == 2);
  CHECK(rig.hints.at(0).since_ns == rig.now);
  hint.hint.rank = 2;
  rig.frame(2, hint);
  hint.hint.rank = 4;
  rig.frame(0, hint);
  CHECK(rig.hints.size() == 1);
  hint.type = FrameType::kHintOver;
  hint.hint.rank = 3;
  rig.frame(0, hint);
  CHECK(rig.hints.empty());
  rig.run(10 * kSecond);
  CHECK_FALSE(rig.decided);
}

// Without a coordinator each rank bounds its own waits.
TEST_CASE("review: a wait without rank 0") {
  Rig rig(1, 3);
  rig.run(1 * kSecond);
  Frame goodbye;
  goodbye.type = FrameType::kGoodbye;
  rig.frame(0, goodbye);
  rig.tell({Event::Kind::kLinkEnded, 0, {}, "closed without goodbye"});
  rig.peer(0).beats = false;
  rig.run(100 * kSecond);
  CHECK_FALSE(rig.decided);
  const Nanos since = rig.now;
  receive_from(rig.peer(1).status, 2);
  rig.run(70 * kSecond);
  rig.check_decided(Kind::kNoProgress, 2, since + 60 * kSecond, since + 61 * kSecond);
}

}  // namespace standfast
