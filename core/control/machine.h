// Who is gone, and why: the rules, as a pure function of state, event and time. No I/O, no clock,
// no thread. The watch's thread feeds it (loop.cpp). Rank 0 decides for everybody; the others
// report to it, and decide alone only about rank 0 itself, or where rank 0 does not answer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/control/frames.h"
#include "core/control/verdict.h"

namespace standfast {

struct Event {
  enum class Kind {
    kFrame,        // `frame` came from `rank`
    kLinkEnded,    // the control link to `rank` ended; `text` says how
    kProcessGone,  // the process of `rank`, on this host, is gone; its link has been read empty
                   // before
    kLocal,        // this rank's own operations report `frame`
    kLeaving,      // rank 0 itself says goodbye in `frame`, and goes on as coordinator
    kTick,         // nothing but time
  };
  Kind kind = Kind::kTick;
  int rank = -1;
  Frame frame;
  std::string text;
};

struct Actions {
  struct Send {
    int to;
    Frame frame;
  };
  std::optional<Verdict> verdict;  // raise this
  std::vector<Send> sends;         // then tell them
};

class Machine {
 public:
  // How long a broken data wire waits for its reason: a goodbye, an exception, a death.
  static constexpr Nanos kReasonGrace = 300 * kMillisecond;
  // How long a report to rank 0 waits for the verdict before this rank decides alone.
  static constexpr Nanos kAnswerGrace = 500 * kMillisecond;

  struct Shape {
    int rank;
    int size;
    std::uint32_t generation;
  };
  explicit Machine(Shape shape);

  Actions step(const Event& event, Nanos now);
  // When kTick is due, or kNever.
  Nanos wakes_at() const;

  bool has_left(int rank) const { return member(rank).left; }
  // The last collective that this rank takes part in.
  std::uint32_t last_collective(int rank) const { return member(rank).collectives; }
  bool is_decided() const { return decided_; }

 private:
  struct Suspicion {
    Verdict verdict;
    Nanos decide_at;
    bool is_awaited;  // an operation waits for this rank; if not, its process was seen to be gone
  };
  struct Member {
    bool left = false;  // said goodbye
    std::string goodbye;
    std::uint32_t collectives = kEveryCollective;
    bool link_up = true;
    bool gone = false;  // its process ended
    std::optional<Suspicion> suspicion;
  };

  bool decides_here() const { return shape_.rank == 0 || !member(0).link_up; }
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  bool is_peer(int rank) const { return rank >= 0 && rank < shape_.size; }
  Frame frame_of(FrameType type, Verdict verdict) const;
  Verdict verdict_of(VerdictKind kind, int rank, std::string cause) const;
  Verdict reason(VerdictKind kind, int rank, std::string cause) const;

  void on_frame(const Event& event, Nanos now, Actions& actions);
  void on_goodbye(int rank, const Frame& frame, Actions& actions);
  void note_goodbye(int rank, const Frame& frame);
  Verdict left(const Verdict& suspicion) const;
  void on_link_ended(int rank, const std::string& how, Actions& actions);
  void on_process_gone(int rank, const std::string& how, Actions& actions);
  void on_report(Frame report, Nanos now, Actions& actions);
  void suspect(Verdict verdict, Nanos decide_at);
  const Member* first_due() const;
  void conclude(Actions& actions);
  void decide(Verdict verdict, Actions& actions);
  void tell_all(const Frame& frame, int but, Actions& actions) const;

  const Shape shape_;
  std::vector<Member> members_;
  bool decided_ = false;
};

}  // namespace standfast
