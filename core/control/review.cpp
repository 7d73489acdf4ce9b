// The machine's part that time drives: beats, silence, and waiting without progress.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/base/ranks_text.h"
#include "core/control/machine.h"

namespace standfast {
namespace {

// A review happens once in a heartbeat, and what it looks at is up to a heartbeat old.
constexpr int kReviewsOfSlack = 2;
constexpr Nanos kAskEvery = 20 * kMillisecond;
constexpr Nanos kWarnEveryMax = 600 * kSecond;
// Of a limit: when its coming end is told.
constexpr int kForetoldShare = 10;

// "2.6 s", "600 s".
std::string seconds_text(Nanos span) {
  char text[32];
  const double seconds = to_seconds(span);
  std::snprintf(text, sizeof text, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

const char* process_text(char state) {
  switch (state) {
    case 'T': return "its process is stopped (by a signal such as SIGSTOP)";
    case 't': return "its process is stopped by a debugger";
    case 'D': return "its process is in an uninterruptible system call";
    default: return nullptr;
  }
}

// What a rank is in, where it is in anything.
const Activity* running(const Status& status) {
  for (const Activity& half : status.halves) {
    if (half.running) return &half;
  }
  return nullptr;
}

bool is_about_progress(HintKind kind) {
  return kind == HintKind::kLate || kind == HintKind::kWedged;
}

bool is_about_silence(HintKind kind) { return kind != HintKind::kNone && !is_about_progress(kind); }

}  // namespace

Nanos Machine::hint_after() const {
  if (limits_.hint == kNever) return kNever;
  return std::max(limits_.hint - kReviewsOfSlack * limits_.heartbeat, limits_.hint / 2);
}

// Was this thread late, nobody could be heard meanwhile: everybody gets that time.
void Machine::note_lateness(Nanos now) {
  if (review_at_ == kNever || review_at_ == 0) return;
  const Nanos late = now - review_at_;
  if (late <= limits_.heartbeat) return;
  late_at_ = now;
  late_by_ = late;
  review_at_ = now;
  for (Member& member : members_) {
    for (Nanos* at : {&member.life_at, &member.heard_at, &member.acked_at, &member.status_at}) {
      if (*at != 0) *at = std::min(now, *at + late);
    }
  }
}

void Machine::review(const Event& event, Nanos now, Actions& actions) {
  const bool is_first = review_at_ == 0;
  review_at_ = deadline_after(now, limits_.heartbeat);
  if (is_first) {
    for (Member& member : members_) member.life_at = member.acked_at = member.heard_at = now;
  }
  take_in(event, now);
  settle_question(now);
  if (now >= ask_again_at_) ask_all(now, actions);
  send_beats(now, actions);
  if (decided_) return;
  review_silence(now, actions);
  review_progress(now, actions);
  warn(actions);
}

void Machine::note_status(Member& peer, const Status& status, Nanos now) {
  const auto differ = [](const Activity& a, const Activity& b) {
    return a.tag.seq != b.tag.seq || a.running != b.running;
  };
  const Status& last = peer.status;
  const bool moved = last.started != status.started || last.finished != status.finished ||
                     differ(last.halves[0], status.halves[0]) ||
                     differ(last.halves[1], status.halves[1]);
  if (moved) peer.moved_at = now;
  peer.status = status;
  peer.status_at = now;
}

void Machine::take_in(const Event& event, Nanos now) {
  Member& me = member(shape_.rank);
  me.life_at = me.beat_at = me.acked_at = now;
  note_status(me, event.frame.status, now);
  if (event.sights == nullptr) return;
  for (int rank = 0; rank < shape_.size; ++rank) {
    const Sight& sight = (*event.sights)[static_cast<std::size_t>(rank)];
    // Of most ranks of a large group, most see nothing.
    if (sight == Sight{}) continue;
    Member& peer = member(rank);
    peer.data_at = std::max(peer.data_at, sight.data_at);
    peer.life_at = std::max(peer.life_at, sight.data_at);
    peer.acked_at = std::max(peer.acked_at, sight.acked_at);
    // Where the control network is gone, beats can't come, and a host that answers on the data
    // network must do. Where it is not, an answer says nothing of the process.
    if (!peer.link_up || !host_answers(rank, now)) {
      peer.life_at = std::max(peer.life_at, sight.wire_at);
    }
    peer.process = sight.process;
  }
}

void Machine::on_beat(int rank, const Frame& frame, Nanos now, Actions& actions) {
  Member& peer = member(rank);
  note_status(peer, frame.status, now);
  if (rank == 0) asked_about_ = frame.subject;
  // An answer to what rank 0 asked: data of that rank came lately.
  if (shape_.rank == 0 && is_peer(frame.subject) && frame.data_age != kNever) {
    Member& subject = member(frame.subject);
    const Nanos data_at = now - std::min(frame.data_age, now);
    subject.data_at = std::max(subject.data_at, data_at);
    subject.life_at = std::max(subject.life_at, data_at);
  }
  if (is_about_silence(peer.hint) && is_judged_here(rank)) end_hint(rank, actions);
  settle_question(now);
}

// All have said what they are in: a disagreement can be told in full. A rank that is on its way to
// the others is asked again; its time is the suspicion's.
void Machine::settle_question(Nanos now) {
  if (asked_at_ == kNever || !have_all_answered()) return;
  asked_at_ = kNever;
  if (!have_all_arrived()) {
    ask_again_at_ = now + kAskEvery;
    review_at_ = std::min(review_at_, ask_again_at_);
    return;
  }
  for (Member& each : members_) {
    const bool disagrees = each.suspicion && each.suspicion->verdict.kind == VerdictKind::kMismatch;
    if (disagrees) each.suspicion->decide_at = now;
  }
  refresh_due();
}

// The network gave the link up, which says nothing of the rank behind it: data may still flow.
void Machine::on_link_expired(int rank, Nanos now, Actions& actions) {
  member(rank).link_up = false;
  if (member(rank).left || decided_) return;
  review_silence_of(rank, now, actions);
}

void Machine::send_beats(Nanos now, Actions& actions) {
  if (shape_.rank != 0) {
    if (member(0).link_up) actions.sends.push_back({0, beat(now, asked_about_)});
    return;
  }
  tell_all(beat(now, next_subject(now)), 0, actions);
}

// What this rank does; about `subject`, rank 0 asks and the others answer.
Frame Machine::beat(Nanos now, int subject) const {
  Frame frame = frame_of(FrameType::kBeat);
  frame.status = member(shape_.rank).status;
  frame.subject = subject;
  if (shape_.rank == 0 || !is_peer(subject) || subject == shape_.rank) return frame;
  const Nanos data_at = member(subject).data_at;
  if (data_at != 0) frame.data_age = now - data_at;
  return frame;
}

// The silent ones take turns.
int Machine::next_subject(Nanos now) {
  for (int step = 1; step <= shape_.size; ++step) {
    const int rank = (subject_ + step) % shape_.size;
    if (rank == 0 || member(rank).left || now - member(rank).beat_at < hint_after()) continue;
    subject_ = rank;
    return rank;
  }
  return -1;
}

// Rank 0 hears everybody; the others hear rank 0.
bool Machine::is_judged_here(int rank) const {
  return rank != shape_.rank && (shape_.rank == 0 || rank == 0);
}

void Machine::review_silence(Nanos now, Actions& actions) {
  if (limits_.hint == kNever) return;
  const int judged = shape_.rank == 0 ? shape_.size : 1;
  for (int rank = 0; rank < judged && !decided_; ++rank) {
    if (is_judged_here(rank) && !member(rank).left) review_silence_of(rank, now, actions);
  }
}

void Machine::review_silence_of(int rank, Nanos now, Actions& actions) {
  if (!is_judged_here(rank)) return;
  Member& peer = member(rank);
  if (silence_of(rank, now) >= limits_.silence) {
    Verdict verdict = silent_verdict(rank, now);
    // If rank 0 is only slow, it shall know that it was given up.
    if (rank == 0 && peer.link_up) {
      actions.sends.push_back({0, frame_of(FrameType::kReport, verdict)});
    }
    return decide(std::move(verdict), actions);
  }
  if (!is_silent(rank, now)) {
    // A rank that has just come back sends data before its next beat.
    const bool is_back = peer.silent_at != 0 && now - peer.silent_at < hint_after();
    const bool is_cut = !peer.link_up || (now - peer.heard_at >= limits_.hint && !is_back);
    if (!is_cut && is_about_silence(peer.hint)) end_hint(rank, actions);
    if (is_cut && peer.hint != HintKind::kCut) {
      show({HintKind::kCut, rank, shape_.rank,
            "its control link is cut or stands still, while its data flows", signs(rank, now), 0},
           now, actions);
    }
    return;
  }
  peer.silent_at = now;
  const HintKind kind = host_answers(rank, now) ? HintKind::kFrozen : HintKind::kUnreachable;
  if (peer.hint == kind) return;
  show({kind, rank, shape_.rank, silent_verdict(rank, now).cause, signs(rank, now), 0}, now,
       actions);
}

Verdict Machine::silent_verdict(int rank, Nanos now) const {
  const std::string silence = "no sign of life for " + seconds_text(silence_of(rank, now));
  Verdict verdict =
      host_answers(rank, now)
          ? reason(VerdictKind::kStalled, rank, silence + ", while its host acknowledges")
          : reason(VerdictKind::kUnreachable, rank, silence + ", and its host does not answer");
  for (std::string& text : signs(rank, now)) verdict.evidence.push_back(std::move(text));
  return verdict;
}

// What is known of a rank, as evidence.
std::vector<std::string> Machine::signs(int rank, Nanos now) const {
  const Member& peer = member(rank);
  std::vector<std::string> texts;
  const auto ago = [&](const char* what, Nanos at) {
    if (at != 0) texts.push_back(what + seconds_text(now - at) + " ago");
  };
  ago("last beat ", peer.beat_at);
  ago("last data ", peer.data_at);
  if (is_judged_here(rank)) ago("all sent to it was acknowledged ", peer.acked_at);
  if (const char* text = process_text(peer.process)) texts.emplace_back(text);
  if (peer.status_at != 0) {
    const Activity* half = running(peer.status);
    texts.push_back(half != nullptr ? "it said that it was in " + describe(*half)
                                    : "it said that it was in no operation");
    if (peer.status.started > 0) {
      texts.push_back("it had begun " + std::to_string(peer.status.started) +
                      " collectives, and finished " + std::to_string(peer.status.finished));
    }
  }
  return texts;
}

void Machine::gather_statuses(Nanos now) {
  for (int rank = 0; rank < shape_.size; ++rank) {
    const Member& peer = member(rank);
    // What a rank said too long ago may be true no more; of one that is silent it is what counts.
    const bool known = peer.status_at != 0 && !peer.left &&
                       (now - peer.status_at < hint_after() || is_silent(rank, now));
    statuses_[static_cast<std::size_t>(rank)] = known ? &peer.status : nullptr;
  }
}

// How long a wait has lasted by now, if it still lasts.
Nanos Machine::waited(int rank, const Activity& half, Nanos now) const {
  return half.waits() ? half.waited + (now - member(rank).status_at) : 0;
}

void Machine::review_progress(Nanos now, Actions& actions) {
  if (limits_.hint == kNever || decided_) return;
  if (shape_.rank != 0) return review_own_wait(now, actions);
  gather_statuses(now);
  std::fill(holds_up_.begin(), holds_up_.end(), false);
  review_history(now, actions);
  review_waits(now, actions);
  if (!decided_) review_program(now, actions);
  for (int rank = 0; rank < shape_.size; ++rank) {
    const bool is_over =
        is_about_progress(member(rank).hint) && !holds_up_[static_cast<std::size_t>(rank)];
    if (is_over) end_hint(rank, actions);
  }
}

void Machine::review_waits(Nanos now, Actions& actions) {
  int longest = -1;
  const Activity* longest_half = nullptr;
  for (int rank = 0; rank < shape_.size; ++rank) {
    if (statuses_[static_cast<std::size_t>(rank)] == nullptr || is_silent(rank, now)) continue;
    for (const Activity& half : member(rank).status.halves) {
      const Nanos span = waited(rank, half, now);
      if (span < hint_after()) continue;
      if (longest < 0 || span > waited(longest, *longest_half, now)) {
        longest = rank;
        longest_half = &half;
      }
    }
  }
  if (longest < 0) return;
  hint_roots(longest, *longest_half, now, actions);
  const Nanos limit = deadline_after(kReviewsOfSlack * limits_.heartbeat, limits_.progress);
  if (waited(longest, *longest_half, now) >= limit) end_wait(longest, *longest_half, now, actions);
}

void Machine::hint_roots(int waiter, const Activity& half, Nanos now, Actions& actions) {
  const std::string op = describe(half);
  for (const int root : blame_.roots(waiter, statuses_)) {
    Member& peer = member(root);
    holds_up_[static_cast<std::size_t>(root)] = true;
    // What the waiter said is older than what this rank has done since.
    if (peer.left || is_about_silence(peer.hint) || has_moved_since(root, waiter)) continue;
    const Activity* own = running(peer.status);
    const HintKind kind = own == nullptr ? HintKind::kLate : HintKind::kWedged;
    if (peer.hint == kind) continue;
    const std::string waiting = "rank " + std::to_string(waiter) + " has waited for it for " +
                                seconds_text(waited(waiter, half, now));
    const std::string cause =
        own == nullptr ? "it has not begun " + op + ", and " + waiting
                       : "it is in " + describe(*own) + " and does not get on, and " + waiting;
    show({kind, root, shape_.rank, cause, signs(root, now), 0}, now, actions);
  }
}

// The progress limit is over for a wait: whoever is at its root has stalled.
void Machine::end_wait(int waiter, const Activity& half, Nanos now, Actions& actions) {
  const std::string op = describe(half);
  const Nanos span = waited(waiter, half, now);
  const std::vector<int>& roots = blame_.roots(waiter, statuses_);
  const Nanos patience = 2 * kReviewsOfSlack * limits_.heartbeat;
  for (const int root : roots) {
    const Member& peer = member(root);
    // The next beat may tell that the wait is over.
    if (has_moved_since(root, waiter) && span - limits_.progress < patience) return;
    // It has said goodbye, and whoever needs it hears so from its wire; or it is silent, and that
    // has a limit of its own.
    if (peer.left || is_silent(root, now)) return;
    const bool starts_up = peer.status_at == 0 || !peer.status.began_anything();
    if (starts_up && span < limits_.startup) return;
  }
  const std::string waiting =
      "rank " + std::to_string(waiter) + " waited " + seconds_text(span) + " in " + op;
  if (roots.empty()) {
    Verdict verdict = verdict_of(VerdictKind::kNoProgress, half.waiting_for,
                                 waiting + " for rank " + std::to_string(half.waiting_for) +
                                     ", and all ranks wait for each other in a circle");
    name_both_sides(verdict);
    return decide(std::move(verdict), actions);
  }
  const int root = roots.front();
  const Activity* own = running(member(root).status);
  const std::string cause = own == nullptr ? "it lives, but did not begin " + op
                                           : "it lives, but does not get on with " + describe(*own);
  Verdict verdict = reason(VerdictKind::kStalled, root, cause);
  verdict.evidence.push_back(waiting);
  if (roots.size() > 1) verdict.evidence.push_back("the same holds for " + ranks_text(roots));
  for (std::string& text : signs(root, now)) verdict.evidence.push_back(std::move(text));
  decide(std::move(verdict), actions);
}

// Programs that tell their own progress, and stopped doing so.
void Machine::review_program(Nanos now, Actions& actions) {
  if (limits_.progress == kNever) return;
  const auto age = [&](int rank) {
    return member(rank).status.program.age + (now - member(rank).status_at);
  };
  const auto is_behind = [&](int a, int b) {
    const ProgramBeat& one = member(a).status.program;
    const ProgramBeat& other = member(b).status.program;
    return one.step != other.step ? one.step < other.step : age(a) > age(b);
  };
  int last = -1;
  for (int rank = 0; rank < shape_.size; ++rank) {
    const Status* status = statuses_[static_cast<std::size_t>(rank)];
    if (status == nullptr || is_silent(rank, now) || !status->program.busy) continue;
    if (age(rank) < std::max(limits_.hint, limits_.progress / kForetoldShare)) continue;
    if (last < 0 || is_behind(rank, last)) last = rank;
  }
  if (last < 0) return;
  holds_up_[static_cast<std::size_t>(last)] = true;
  const ProgramBeat& program = member(last).status.program;
  const std::string cause = "its program beat last with \"" + program.label + "\" " +
                            std::to_string(program.step) + ", " + seconds_text(age(last)) + " ago";
  if (age(last) >= limits_.progress + kReviewsOfSlack * limits_.heartbeat) {
    Verdict verdict = reason(VerdictKind::kStalled, last, cause);
    for (std::string& text : signs(last, now)) verdict.evidence.push_back(std::move(text));
    return decide(std::move(verdict), actions);
  }
  if (member(last).hint == HintKind::kNone) {
    show({HintKind::kWedged, last, shape_.rank, cause, signs(last, now), 0}, now, actions);
  }
}

// Elsewhere than at rank 0: its judgement is waited for, as long as it is there.
void Machine::review_own_wait(Nanos now, Actions& actions) {
  if (limits_.progress == kNever || member(0).link_up) return;
  for (const Activity& half : member(shape_.rank).status.halves) {
    const Nanos span = waited(shape_.rank, half, now);
    if (span < limits_.progress || decided_) continue;
    decide(reason(VerdictKind::kNoProgress, half.waiting_for,
                  "rank " + std::to_string(shape_.rank) + " waited " + seconds_text(span) + " in " +
                      describe(half) + " for rank " + std::to_string(half.waiting_for)),
           actions);
  }
}

// Ranks that have begun as many collectives have begun the same ones.
void Machine::review_history(Nanos now, Actions& actions) {
  if (asked_at_ != kNever) return;
  constexpr int kKnown = 8;
  const Status* known[kKnown] = {};
  for (int rank = 0; rank < shape_.size; ++rank) {
    const Status* status = statuses_[static_cast<std::size_t>(rank)];
    if (status == nullptr || status->started == 0) continue;
    const Status*& place = known[status->started % kKnown];
    if (place == nullptr || place->started != status->started) {
      place = status;
    } else if (place->digest != status->digest) {
      suspect(verdict_of(VerdictKind::kMismatch, rank,
                         "the ranks' collectives up to #" + std::to_string(status->started) +
                             " are not the same"),
              now + kPollGrace);
      return ask_all(now, actions);
    }
  }
}

void Machine::ask_all(Nanos now, Actions& actions) {
  if (asked_at_ != kNever || shape_.rank != 0) return;
  asked_at_ = now;
  ask_again_at_ = kNever;
  review_at_ = now;  // it asks itself as well
  tell_all(frame_of(FrameType::kAsk), 0, actions);
}

bool Machine::have_all_answered() const {
  return std::all_of(members_.begin(), members_.end(), [&](const Member& peer) {
    return peer.left || !peer.link_up || peer.status_at >= asked_at_;
  });
}

// No rank is behind the others and on its way to them.
bool Machine::have_all_arrived() const {
  std::uint32_t furthest = 0;
  for (const Member& peer : members_) furthest = std::max(furthest, peer.status.started);
  return std::all_of(members_.begin(), members_.end(), [&](const Member& peer) {
    return peer.left || !peer.link_up || peer.status.started == furthest || peer.status.waits();
  });
}

// From what two ranks saw of each other to what all ranks are in.
void Machine::name_both_sides(Verdict& verdict) const {
  std::vector<std::pair<std::string, std::vector<int>>> sides;
  for (int rank = 0; rank < shape_.size; ++rank) {
    const Member& peer = member(rank);
    if (peer.left || peer.status_at == 0) continue;
    const Activity* half = running(peer.status);
    const std::string op = half == nullptr ? "no operation" : describe(*half);
    auto side = std::find_if(sides.begin(), sides.end(),
                             [&](const auto& each) { return each.first == op; });
    if (side == sides.end()) side = sides.insert(sides.end(), {op, {}});
    side->second.push_back(rank);
  }
  if (sides.size() < 2) return;
  std::string text;
  for (const auto& [op, ranks] : sides) {
    if (!text.empty()) text += ", ";
    text += ranks_text(ranks) + (ranks.size() == 1 ? " is in " : " are in ") + op;
  }
  verdict.evidence.insert(verdict.evidence.begin(), std::move(verdict.cause));
  verdict.cause = std::move(text);
}

void Machine::show(Hint hint, Nanos now, Actions& actions) {
  hint.since_ns = now;
  member(hint.rank).hint = hint.kind;
  if (shape_.rank == 0) {
    Frame frame = frame_of(FrameType::kHint);
    frame.hint = hint;
    tell_all(frame, 0, actions);
  }
  actions.hints.push_back(std::move(hint));
}

void Machine::end_hint(int rank, Actions& actions) {
  if (member(rank).hint == HintKind::kNone) return;
  member(rank).hint = HintKind::kNone;
  if (shape_.rank == 0) {
    Frame frame = frame_of(FrameType::kHintOver);
    frame.hint.rank = rank;
    tell_all(frame, 0, actions);
  }
  actions.hints_over.push_back(rank);
}

// Who waits says for whom, again and again, in ever longer intervals.
void Machine::warn(Actions& actions) {
  const Status& mine = member(shape_.rank).status;
  const Activity* longest = nullptr;
  for (const Activity& half : mine.halves) {
    if (half.waits() && (longest == nullptr || half.waited > longest->waited)) longest = &half;
  }
  if (longest == nullptr || longest->waited < limits_.hint) {
    warned_for_ = 0;
    return;
  }
  const Nanos pause = std::min(std::max(warned_for_, limits_.hint), kWarnEveryMax);
  if (warned_for_ != 0 && longest->waited < warned_for_ + pause) return;
  warned_for_ = longest->waited;
  std::vector<int> ranks;
  for (int rank = 0; rank < shape_.size; ++rank) {
    const HintKind kind = member(rank).hint;
    if (rank != shape_.rank && kind != HintKind::kNone && kind != HintKind::kCut) {
      ranks.push_back(rank);
    }
  }
  if (ranks.empty()) ranks.push_back(longest->waiting_for);
  actions.warning = "waiting for " + ranks_text(ranks) + " in " + describe(*longest) + " for " +
                    seconds_text(longest->waited);
}

}  // namespace standfast
