// Who is gone, and why: the rules, as a pure function of state, event and time. No I/O, no clock,
// no thread. The watch's thread feeds it (loop.cpp). Rank 0 decides for everybody; the others
// report to it, and decide alone only about rank 0 itself, or where rank 0 does not answer.
//
// machine.cpp: what is heard and seen, and what it means at once.
// review.cpp: what time brings to light: silence, waiting without progress, and beats to send.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/control/blame.h"
#include "core/control/frames.h"
#include "core/control/hint.h"
#include "core/control/verdict.h"

namespace standfast {

// The same on all ranks; heartbeat < hint < silence, progress. kNever: off.
struct WatchLimits {
  Nanos heartbeat = kNever;
  Nanos hint = kNever;
  Nanos silence = kNever;
  Nanos progress = kNever;
  Nanos startup = 0;  // instead of `progress` for a rank that has not begun anything, if longer
};

// What the thread sees of a peer beside its frames.
struct Sight {
  Nanos data_at = 0;   // when data of it came last, as far as is known
  Nanos acked_at = 0;  // when its host had acknowledged all that was sent to it
  Nanos wire_at = 0;   // when its host last acknowledged anything on the data connection
  char process = 0;    // its state, as Linux names it, where it is known: 'T' stopped, ...

  bool operator==(const Sight&) const = default;
};

struct Event {
  enum class Kind {
    kFrame,        // `frame` came from `rank`
    kLinkEnded,    // the control link to `rank` ended; `text` says how
    kLinkExpired,  // its host did not answer on the control link to `rank`; `text` says how
    kProcessGone,  // the process of `rank`, on this host, is gone; its link has been read empty
                   // before
    kLocal,        // this rank's own operations report `frame`
    kLeaving,      // rank 0 itself says goodbye in `frame`, and goes on as coordinator
    kTick,         // nothing but time; with `frame.status` and `sights` where a review is due
  };
  Kind kind = Kind::kTick;
  int rank = -1;
  Frame frame;
  std::string text;
  const std::vector<Sight>* sights = nullptr;  // by rank
  bool drained = false;  // kFrame: all that the accused of its report has sent was read before
};

struct Actions {
  struct Send {
    int to;
    Frame frame;
  };
  std::vector<Send> sends;         // tell them
  std::optional<Verdict> verdict;  // then raise this
  std::vector<Hint> hints;         // show these
  std::vector<int> hints_over;     // hints of these ranks are over
  std::string warning;             // for the log
};

class Machine {
 public:
  // How long a broken data wire waits for its reason: a goodbye, an exception, a death.
  static constexpr Nanos kReasonGrace = 300 * kMillisecond;
  // The same for a death that a neighbour saw; what the dead one said before is on its way.
  static constexpr Nanos kLastWordsGrace = 5 * kMillisecond;
  // How long a report to rank 0 waits for the verdict before this rank decides alone.
  static constexpr Nanos kAnswerGrace = 500 * kMillisecond;
  // How long a disagreement waits for all ranks to say what they are in.
  static constexpr Nanos kPollGrace = 300 * kMillisecond;

  struct Shape {
    int rank;
    int size;
    std::uint32_t generation;
    // Every rank decides for itself: the others can't be told.
    bool is_solitary = false;
  };
  explicit Machine(Shape shape, WatchLimits limits = {});

  Actions step(const Event& event, Nanos now);
  // When kTick is due, or kNever.
  Nanos wakes_at() const;
  // Is the next tick to bring status and sights?
  bool is_review_due(Nanos now) const { return now >= review_at_; }

  // Has this rank not been heard for a while, by whoever judges it? Then it is worth looking at
  // whatever else shows how it is.
  bool is_unheard(int rank, Nanos now) const {
    return is_judged_here(rank) && now - member(rank).heard_at > 2 * limits_.heartbeat;
  }

  bool has_left(int rank) const { return member(rank).left; }
  // The last collective that this rank takes part in.
  std::uint32_t last_collective(int rank) const { return member(rank).collectives; }
  bool is_decided() const { return decided_; }

 private:
  struct Suspicion {
    Verdict verdict;
    Nanos decide_at;
    bool is_awaited;  // an operation waits for this rank; if not, its process was seen to be gone
    int reports = 1;  // how often it was reported
  };
  struct Member {
    bool left = false;  // said goodbye
    std::string goodbye;
    std::uint32_t collectives = kEveryCollective;
    bool link_up = true;
    bool gone = false;  // its process ended
    std::optional<Suspicion> suspicion;

    Nanos life_at = 0;    // the last sign of life
    Nanos beat_at = 0;    // the last frame
    Nanos heard_at = 0;   // the same, in the time in which this rank could hear
    Nanos silent_at = 0;  // when a review last found no sign of life for long
    Nanos data_at = 0;    // the last data, of which this rank or another knows
    Nanos acked_at = 0;   // when its host last had acknowledged everything
    char process = 0;
    Nanos status_at = 0;  // 0: none yet
    Nanos moved_at = 0;   // when its status last told of another operation, or the end of one
    Status status;
    HintKind hint = HintKind::kNone;  // what is shown of it now
  };

  // machine.cpp
  bool decides_here() const { return shape_.rank == 0 || shape_.is_solitary || !member(0).link_up; }
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  bool is_peer(int rank) const { return rank >= 0 && rank < shape_.size; }
  Frame frame_of(FrameType type, Verdict verdict = {}) const;
  Verdict verdict_of(VerdictKind kind, int rank, std::string cause) const;
  Verdict reason(VerdictKind kind, int rank, std::string cause) const;

  void on_frame(const Event& event, Nanos now, Actions& actions);
  void on_goodbye(int rank, const Frame& frame, Actions& actions);
  void note_goodbye(int rank, const Frame& frame);
  Verdict left(const Verdict& suspicion) const;
  void on_link_ended(int rank, const std::string& how, Actions& actions);
  void on_process_gone(int rank, const std::string& how, Actions& actions);
  void on_report(Frame report, bool drained, Nanos now, Actions& actions);
  void accept_or_turn(Frame& report, Nanos now) const;
  void suspect(Verdict verdict, Nanos decide_at);
  void refresh_due();
  const Member* first_due() const;
  const Member& most_suspected() const;
  void conclude(Nanos now, Actions& actions);
  void decide(Verdict verdict, Actions& actions);
  void tell_all(const Frame& frame, int but, Actions& actions) const;

  // review.cpp
  void note_lateness(Nanos now);
  void review(const Event& event, Nanos now, Actions& actions);
  void take_in(const Event& event, Nanos now);
  static void note_status(Member& peer, const Status& status, Nanos now);
  void on_beat(int rank, const Frame& frame, Nanos now, Actions& actions);
  void on_link_expired(int rank, Nanos now, Actions& actions);
  void send_beats(Nanos now, Actions& actions);
  Frame beat(Nanos now, int subject) const;
  int next_subject(Nanos now);
  bool is_judged_here(int rank) const;
  Nanos hint_after() const;
  Nanos silence_of(int rank, Nanos now) const {
    return member(rank).life_at == 0 ? 0 : now - member(rank).life_at;
  }
  bool is_silent(int rank, Nanos now) const { return silence_of(rank, now) >= hint_after(); }
  bool host_answers(int rank, Nanos now) const {
    return now - member(rank).acked_at < hint_after();
  }
  std::vector<std::string> signs(int rank, Nanos now) const;
  void review_silence(Nanos now, Actions& actions);
  void review_silence_of(int rank, Nanos now, Actions& actions);
  Verdict silent_verdict(int rank, Nanos now) const;
  void gather_statuses(Nanos now);
  Nanos waited(int rank, const Activity& half, Nanos now) const;
  void review_progress(Nanos now, Actions& actions);
  void review_waits(Nanos now, Actions& actions);
  bool has_moved_since(int rank, int waiter) const {
    return member(rank).moved_at > member(waiter).status_at;
  }
  void hint_roots(int waiter, const Activity& half, Nanos now, Actions& actions);
  void end_wait(int waiter, const Activity& half, Nanos now, Actions& actions);
  void review_program(Nanos now, Actions& actions);
  void review_own_wait(Nanos now, Actions& actions);
  void review_history(Nanos now, Actions& actions);
  void ask_all(Nanos now, Actions& actions);
  void settle_question(Nanos now);
  bool have_all_answered() const;
  bool have_all_arrived() const;
  void name_both_sides(Verdict& verdict) const;
  void show(Hint hint, Nanos now, Actions& actions);
  void end_hint(int rank, Actions& actions);
  void warn(Actions& actions);

  const Shape shape_;
  const WatchLimits limits_;
  std::vector<Member> members_;
  bool decided_ = false;
  Nanos due_at_ = kNever;  // the first suspicion's

  Nanos review_at_ = kNever;
  Nanos late_at_ = 0;  // when this thread was last found late, and by how much
  Nanos late_by_ = 0;
  int subject_ = 0;          // whom rank 0's last beat asked about
  int asked_about_ = -1;     // elsewhere: whom rank 0 asks about
  Nanos asked_at_ = kNever;  // when all were asked what they are in
  Nanos ask_again_at_ = kNever;
  Nanos warned_for_ = 0;  // how long the own wait had lasted at the last warning
  Blame blame_;
  Statuses statuses_;
  std::vector<bool> holds_up_;  // by rank: found at the root of somebody's wait in this review
};

}  // namespace standfast
