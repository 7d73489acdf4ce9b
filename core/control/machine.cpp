#include "core/control/machine.h"

#include <algorithm>
#include <utility>

namespace standfast {
namespace {

constexpr std::size_t kEvidenceMax = 8;

void add_evidence(Verdict& verdict, std::string text) {
  if (!text.empty() && verdict.evidence.size() < kEvidenceMax) {
    verdict.evidence.push_back(std::move(text));
  }
}

std::string observation(const Verdict& verdict) {
  return "rank " + std::to_string(verdict.reporter) + ": " + verdict.cause;
}

}  // namespace

Machine::Machine(Shape shape, WatchLimits limits)
    : shape_(shape),
      limits_(limits),
      members_(static_cast<std::size_t>(shape.size)),
      review_at_(limits.heartbeat == kNever ? kNever : 0),
      blame_(shape.size),
      statuses_(static_cast<std::size_t>(shape.size)),
      holds_up_(static_cast<std::size_t>(shape.size)) {}

Actions Machine::step(const Event& event, Nanos now) {
  Actions actions;
  note_lateness(now);
  switch (event.kind) {
    case Event::Kind::kFrame: on_frame(event, now, actions); break;
    case Event::Kind::kLinkEnded: on_link_ended(event.rank, event.text, actions); break;
    case Event::Kind::kLinkExpired: on_link_expired(event.rank, now, actions); break;
    case Event::Kind::kProcessGone: on_process_gone(event.rank, event.text, actions); break;
    case Event::Kind::kLocal: on_report(event.frame, false, now, actions); break;
    case Event::Kind::kLeaving: on_goodbye(shape_.rank, event.frame, actions); break;
    case Event::Kind::kTick:
      if (is_review_due(now)) review(event, now, actions);
      break;
  }
  if (!decided_ && now >= due_at_) conclude(now, actions);
  return actions;
}

Nanos Machine::wakes_at() const { return std::min(review_at_, decided_ ? kNever : due_at_); }

void Machine::refresh_due() {
  const Member* first = first_due();
  due_at_ = first == nullptr ? kNever : first->suspicion->decide_at;
}

const Machine::Member* Machine::first_due() const {
  const Member* first = nullptr;
  for (const Member& member : members_) {
    if (!member.suspicion) continue;
    if (first == nullptr || member.suspicion->decide_at < first->suspicion->decide_at) {
      first = &member;
    }
  }
  return first;
}

void Machine::on_frame(const Event& event, Nanos now, Actions& actions) {
  if (event.frame.generation != shape_.generation) return;
  Member& sender = member(event.rank);
  sender.life_at = sender.beat_at = sender.heard_at = sender.acked_at = now;
  const Verdict& said = event.frame.verdict;
  switch (event.frame.type) {
    case FrameType::kGoodbye: on_goodbye(event.rank, event.frame, actions); break;
    case FrameType::kLeft:
      if (is_peer(said.rank)) note_goodbye(said.rank, event.frame);
      break;
    case FrameType::kReport:
      if (shape_.rank == 0) on_report(event.frame, event.drained, now, actions);
      break;
    case FrameType::kVerdict:
      if (event.rank == 0) decide(said, actions);
      break;
    case FrameType::kBeat: on_beat(event.rank, event.frame, now, actions); break;
    case FrameType::kAsk: review_at_ = std::min(review_at_, now); break;
    case FrameType::kHint:
      if (event.rank == 0 && is_peer(event.frame.hint.rank)) show(event.frame.hint, now, actions);
      break;
    case FrameType::kHintOver:
      if (event.rank == 0 && is_peer(event.frame.hint.rank)) {
        end_hint(event.frame.hint.rank, actions);
      }
      break;
  }
}

void Machine::note_goodbye(int rank, const Frame& frame) {
  member(rank).left = true;
  member(rank).goodbye = frame.verdict.cause;
  member(rank).collectives = frame.collectives;
}

void Machine::on_goodbye(int rank, const Frame& frame, Actions& actions) {
  const Verdict& said = frame.verdict;
  note_goodbye(rank, frame);
  if (shape_.rank == 0 && rank != 0) {
    Frame news = frame_of(FrameType::kLeft, verdict_of(VerdictKind::kNone, rank, said.cause));
    news.collectives = frame.collectives;
    tell_all(news, rank, actions);
  }
  // An interrupted rank leaves in the middle of things: nobody can go on. An orderly one ends
  // nothing, unless somebody waits for it; that its process ended is no news then.
  const bool is_awaited = member(rank).suspicion && member(rank).suspicion->is_awaited;
  Verdict verdict = reason(VerdictKind::kLeft, rank, said.cause);
  member(rank).suspicion.reset();
  refresh_due();
  end_hint(rank, actions);
  if (said.kind == VerdictKind::kLeft || is_awaited) decide(std::move(verdict), actions);
}

void Machine::on_link_ended(int rank, const std::string& how, Actions& actions) {
  member(rank).link_up = false;
  if (member(rank).left) return;
  decide(reason(VerdictKind::kDied, rank, "control link " + how), actions);
}

// Whether the process left in order before it ended is known at rank 0 alone, which has read its
// link: the others hand on what they saw, and are never the judges of it.
void Machine::on_process_gone(int rank, const std::string& how, Actions& actions) {
  member(rank).gone = true;
  if (member(rank).left) return;
  Verdict verdict = reason(VerdictKind::kDied, rank, how);
  if (rank == 0 || shape_.rank == 0) return decide(std::move(verdict), actions);
  if (!member(0).link_up) return;
  Frame report = frame_of(FrameType::kReport, std::move(verdict));
  report.suspicion = true;
  actions.sends.push_back({0, std::move(report)});
}

// At whoever decides: is this report a verdict, or does its reason still have to show? The others
// hand it on, as what they know it to be.
void Machine::on_report(Frame report, bool drained, Nanos now, Actions& actions) {
  Verdict& verdict = report.verdict;
  if (decided_ || !is_peer(verdict.rank)) return;
  if (shape_.rank == 0 && verdict.rank == 0) {
    // Who has left needs nothing of this rank any more.
    const bool is_others = is_peer(verdict.reporter) && verdict.reporter != 0;
    if (is_others && member(verdict.reporter).left) return;
    accept_or_turn(report, now);
  }
  const Member& accused = member(verdict.rank);
  if (report.suspicion && accused.left) {
    // A process that is gone is nobody's loss if it left before.
    if (verdict.kind == VerdictKind::kDied) return;
    verdict = left(verdict);
    report.suspicion = false;
  }
  if (!decides_here()) {
    suspect(verdict, now + kAnswerGrace);
    actions.sends.push_back({0, std::move(report)});
  } else if (verdict.kind == VerdictKind::kMismatch && shape_.size > 2 && !shape_.is_solitary) {
    suspect(std::move(verdict), now + kPollGrace);
    ask_all(now, actions);
  } else if (report.suspicion) {
    const bool is_gone = verdict.kind == VerdictKind::kDied;
    const bool is_known = accused.gone || (is_gone && drained);
    const Nanos grace = is_known ? 0 : is_gone ? kLastWordsGrace : kReasonGrace;
    suspect(std::move(verdict), now + grace);
  } else {
    decide(std::move(verdict), actions);
  }
}

// A rank says that this rank 0 is silent. If this rank was indeed not running, it has missed the
// end of its group; if it was, it is the other that can't be reached from here.
void Machine::accept_or_turn(Frame& report, Nanos now) const {
  Verdict& verdict = report.verdict;
  const bool about_silence =
      verdict.kind == VerdictKind::kStalled || verdict.kind == VerdictKind::kUnreachable;
  const bool slept = late_by_ >= limits_.silence / 2 && now - late_at_ < limits_.silence;
  if (!about_silence || slept || !is_peer(verdict.reporter) || verdict.reporter == 0) return;
  const std::string said = verdict.cause;
  verdict = verdict_of(VerdictKind::kUnreachable, verdict.reporter, "it does not hear rank 0");
  add_evidence(verdict, "rank " + std::to_string(verdict.rank) + ": " + said);
}

// The first suspicion of a rank stands; later ones of the same rank are evidence for it.
void Machine::suspect(Verdict verdict, Nanos decide_at) {
  std::optional<Suspicion>& suspicion = member(verdict.rank).suspicion;
  const bool is_gone = verdict.kind == VerdictKind::kDied;
  if (!suspicion) {
    suspicion = Suspicion{std::move(verdict), decide_at, !is_gone};
    return refresh_due();
  }
  suspicion->decide_at = std::min(suspicion->decide_at, decide_at);
  suspicion->is_awaited |= !is_gone;
  ++suspicion->reports;
  Verdict& first = suspicion->verdict;
  if (is_gone && first.kind == VerdictKind::kLinkLost) first.kind = VerdictKind::kDied;
  add_evidence(first, observation(verdict));
  refresh_due();
}

// Of two ends of a broken connection each accuses the other. Where one rank has lost several, the
// others name it, and each of them only once.
const Machine::Member& Machine::most_suspected() const {
  const Member* most = first_due();
  if (most->suspicion->verdict.kind != VerdictKind::kLinkLost) return *most;
  for (const Member& member : members_) {
    const bool is_link =
        member.suspicion && member.suspicion->verdict.kind == VerdictKind::kLinkLost;
    if (is_link && member.suspicion->reports > most->suspicion->reports) most = &member;
  }
  return *most;
}

// The time for a better reason is over: what is known by now names the suspicion.
void Machine::conclude(Nanos now, Actions& actions) {
  // Where rank 0 itself is silent, its silence is what all ranks will name.
  const bool has_gone_home = member(0).left && !member(0).link_up;
  const VerdictKind first_kind = first_due()->suspicion->verdict.kind;
  const bool may_follow = first_kind == VerdictKind::kLinkLost || first_kind == VerdictKind::kDied;
  if (shape_.rank != 0 && may_follow && !has_gone_home && is_silent(0, now)) {
    due_at_ = member(0).life_at + limits_.silence + 2 * limits_.heartbeat;
    if (now < due_at_) return;
  }
  const Member& accused = most_suspected();
  Verdict verdict = accused.suspicion->verdict;
  if (verdict.kind == VerdictKind::kLinkLost) {
    if (accused.left) {
      verdict = left(verdict);
    } else if (accused.gone) {
      verdict.kind = VerdictKind::kDied;
    } else if (is_judged_here(verdict.rank) && is_silent(verdict.rank, now)) {
      verdict = silent_verdict(verdict.rank, now);
    }
  }
  if (verdict.kind == VerdictKind::kMismatch) name_both_sides(verdict);
  // Rank 0 did not answer in time. If it is only slow, it shall come to the same verdict, before
  // it sees this rank's end and takes that for the cause.
  if (shape_.rank != 0 && member(0).link_up) {
    actions.sends.push_back({0, frame_of(FrameType::kReport, verdict)});
  }
  decide(std::move(verdict), actions);
}

void Machine::decide(Verdict verdict, Actions& actions) {
  if (decided_) return;
  decided_ = true;
  if (shape_.rank == 0) tell_all(frame_of(FrameType::kVerdict, verdict), verdict.rank, actions);
  actions.verdict = std::move(verdict);
}

void Machine::tell_all(const Frame& frame, int but, Actions& actions) const {
  for (int rank = 1; rank < shape_.size; ++rank) {
    // The accused hears the verdict too, if it still listens: it must not go on alone.
    const bool is_goodbye_echo = rank == but && frame.type == FrameType::kLeft;
    if (member(rank).link_up && !is_goodbye_echo) actions.sends.push_back({rank, frame});
  }
}

Frame Machine::frame_of(FrameType type, Verdict verdict) const {
  Frame frame;
  frame.type = type;
  frame.generation = shape_.generation;
  frame.verdict = std::move(verdict);
  return frame;
}

// What was seen of the rank before is evidence.
Verdict Machine::reason(VerdictKind kind, int rank, std::string cause) const {
  Verdict verdict = verdict_of(kind, rank, std::move(cause));
  if (const std::optional<Suspicion>& before = member(rank).suspicion) {
    add_evidence(verdict, observation(before->verdict));
    for (const std::string& text : before->verdict.evidence) add_evidence(verdict, text);
  }
  return verdict;
}

// What looked like a fault was the end of a rank that had left; what was seen is evidence.
Verdict Machine::left(const Verdict& suspicion) const {
  Verdict verdict = suspicion;
  verdict.kind = VerdictKind::kLeft;
  verdict.cause = member(suspicion.rank).goodbye;
  verdict.evidence.clear();
  add_evidence(verdict, observation(suspicion));
  for (const std::string& text : suspicion.evidence) add_evidence(verdict, text);
  return verdict;
}

Verdict Machine::verdict_of(VerdictKind kind, int rank, std::string cause) const {
  Verdict verdict;
  verdict.kind = kind;
  verdict.rank = rank;
  verdict.reporter = shape_.rank;
  verdict.cause = std::move(cause);
  return verdict;
}

}  // namespace standfast
