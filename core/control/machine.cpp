#include "core/control/machine.h"

#include <utility>

namespace standfast {
namespace {

constexpr std::size_t kEvidenceMax = 8;

void add_evidence(Verdict& verdict, std::string text) {
  if (!text.empty() && verdict.evidence.size() < kEvidenceMax) {
    verdict.evidence.push_back(std::move(text));
  }
}

}  // namespace

Machine::Machine(Shape shape) : shape_(shape), members_(static_cast<std::size_t>(shape.size)) {}

Actions Machine::step(const Event& event, Nanos now) {
  Actions actions;
  switch (event.kind) {
    case Event::Kind::kFrame: on_frame(event, now, actions); break;
    case Event::Kind::kLinkEnded: on_link_ended(event.rank, event.text, actions); break;
    case Event::Kind::kProcessGone: on_process_gone(event.rank, event.text, actions); break;
    case Event::Kind::kLocal: on_report(event.frame, now, actions); break;
    case Event::Kind::kTick: break;
  }
  if (now >= wakes_at()) decide(conclusion(), actions);
  return actions;
}

void Machine::on_frame(const Event& event, Nanos now, Actions& actions) {
  if (event.frame.generation != shape_.generation) return;
  const Verdict& said = event.frame.verdict;
  switch (event.frame.type) {
    case FrameType::kGoodbye: on_goodbye(event.rank, said, actions); break;
    case FrameType::kLeft:
      if (is_peer(said.rank)) member(said.rank).left = true;
      break;
    case FrameType::kReport:
      if (shape_.rank == 0) on_report(event.frame, now, actions);
      break;
    case FrameType::kVerdict:
      if (event.rank == 0) decide(said, actions);
      break;
  }
}

void Machine::on_goodbye(int rank, const Verdict& said, Actions& actions) {
  member(rank).left = true;
  if (shape_.rank == 0) {
    tell_all(frame_of(FrameType::kLeft, verdict_of(VerdictKind::kNone, rank, said.cause)), rank,
             actions);
  }
  // An interrupted rank leaves in the middle of things: nobody can go on. An orderly one ends
  // nothing, unless somebody waits for it; that its process ended is no news then.
  const bool is_suspect = candidate_ && candidate_->verdict.rank == rank;
  const bool is_awaited = is_suspect && candidate_->verdict.kind != VerdictKind::kDied;
  if (is_suspect && !is_awaited) candidate_.reset();
  if (said.kind == VerdictKind::kLeft || is_awaited) {
    decide(verdict_of(VerdictKind::kLeft, rank, said.cause), actions);
  }
}

void Machine::on_link_ended(int rank, const std::string& how, Actions& actions) {
  member(rank).link_up = false;
  if (member(rank).left) return;
  Verdict verdict = verdict_of(VerdictKind::kDied, rank, "control link " + how);
  if (candidate_) verdict.evidence = candidate_->verdict.evidence;
  decide(std::move(verdict), actions);
}

// Whether the process left in order before it ended is known at rank 0 alone, which has read its
// link: the others hand on what they saw, and are never the judges of it.
void Machine::on_process_gone(int rank, const std::string& how, Actions& actions) {
  member(rank).gone = true;
  if (member(rank).left) return;
  Verdict verdict = verdict_of(VerdictKind::kDied, rank, how);
  if (rank == 0 || shape_.rank == 0) return decide(std::move(verdict), actions);
  if (!member(0).link_up) return;
  Frame report = frame_of(FrameType::kReport, std::move(verdict));
  report.suspicion = true;
  actions.sends.push_back({0, std::move(report)});
}

void Machine::on_report(const Frame& frame, Nanos now, Actions& actions) {
  if (decided_ || !is_peer(frame.verdict.rank)) return;
  if (decides_here()) return judge(frame, now, actions);
  actions.sends.push_back({0, frame});
  suspect(frame.verdict, now + kAnswerGrace);
}

// At whoever decides: is this report a verdict, or does its reason still have to show?
void Machine::judge(const Frame& report, Nanos now, Actions& actions) {
  if (!report.suspicion) return decide(report.verdict, actions);
  const Member& accused = member(report.verdict.rank);
  // A process that is gone is nobody's loss if it left before.
  if (report.verdict.kind == VerdictKind::kDied && accused.left) return;
  const bool reason_is_known = accused.left || accused.gone;
  suspect(report.verdict, reason_is_known ? now : now + kReasonGrace);
}

// The time for a better reason is over: what is known by now names the suspicion.
Verdict Machine::conclusion() const {
  Verdict verdict = candidate_->verdict;
  if (verdict.kind != VerdictKind::kLinkLost) return verdict;
  const Member& accused = member(verdict.rank);
  if (accused.left) verdict.kind = VerdictKind::kLeft;
  if (accused.gone && !accused.left) verdict.kind = VerdictKind::kDied;
  return verdict;
}

// The first suspicion stands; later ones about the same rank are evidence for it.
void Machine::suspect(Verdict verdict, Nanos decide_at) {
  if (!candidate_) {
    candidate_ = Candidate{std::move(verdict), decide_at};
  } else if (candidate_->verdict.rank == verdict.rank) {
    add_evidence(candidate_->verdict,
                 "rank " + std::to_string(verdict.reporter) + ": " + verdict.cause);
  }
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

Verdict Machine::verdict_of(VerdictKind kind, int rank, std::string cause) const {
  Verdict verdict;
  verdict.kind = kind;
  verdict.rank = rank;
  verdict.reporter = shape_.rank;
  verdict.cause = std::move(cause);
  return verdict;
}

}  // namespace standfast
