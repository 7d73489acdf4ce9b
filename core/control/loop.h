// The watch: the native thread that reads control links and clocks, feeds the machine, and carries
// its verdict to every wait and every rank. It needs no interpreter, so it acts while Python is
// stuck.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/bell.h"
#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/control/abort.h"
#include "core/control/frames.h"
#include "core/control/machine.h"
#include "core/control/poller.h"

namespace standfast {

struct WatchConfig {
  Machine::Shape shape;
  std::vector<std::pair<int, Fd>> links;       // rank -> control link
  std::vector<std::pair<int, int>> processes;  // rank -> pid, peers of this host
  std::vector<const Bell*> bells;              // rung when there is a verdict
  bool exit_on_fault = false;                  // end the process if nobody takes the error
  Nanos exit_grace = 0;
  bool serve_sigterm = false;
};

class Watch {
 public:
  // Throws SystemError if it can't start. `abort` and the bells outlive the watch.
  Watch(WatchConfig config, AbortWord& abort);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();

  // What this rank's operations saw. Any thread; returns at once.
  void report(VerdictKind kind, int rank, std::string cause, bool suspicion);
  void report(Verdict verdict, bool suspicion);
  // The peer said goodbye. Any thread.
  bool has_left(int rank) const;
  // The last collective that all ranks take part in: those who left were done with it.
  const std::atomic<std::uint32_t>& last_collective() const { return last_collective_; }
  // Who does not take part in this collective; -1 if all do. Any thread.
  int leaver_before(std::uint32_t collective) const;
  // The error has reached the program: it decides from here on, the exit timer is off.
  void taken() { taken_.store(true, std::memory_order_relaxed); }

  // Says goodbye (unless there is a verdict) and joins the thread. An `interrupted` goodbye ends
  // the group for all. Rank 0 stays up to `linger` for those who have not left yet.
  // `collectives`: how many this rank took part in.
  enum class Goodbye { kOrderly, kInterrupted, kNone };
  void end(Goodbye goodbye, Nanos linger, std::uint32_t collectives = kEveryCollective);

  // In the child of a fork: closes what would hide the parent's death. The thread does not exist
  // there.
  void abandon();

 private:
  struct Link {
    int rank;
    Fd fd;
    FrameReader reader;
    std::vector<std::byte> out;
    bool writing = false;
  };

  void run();
  void on_ready(const Ready& ready);
  void serve_inbox();
  void read_link(Link& link);
  void link_ended(int rank, std::string how);
  void drop(std::map<int, Link>::iterator link);
  void process_gone(int rank);
  void step(const Event& event);
  void note_left();
  void raise(Verdict verdict);
  void send(int to, const Frame& frame);
  void flush(Link& link);
  void begin_end();
  bool has_ended() const;
  bool is_flushed() const;
  bool has_gone_home() const;
  void serve_sigterm();
  void exit_if_due(Nanos now) const;
  Nanos next_wake(Nanos now) const;
  Link* link_to(int rank);

  WatchConfig config_;
  AbortWord& abort_;
  Machine machine_;
  Poller poller_;
  Bell inbox_bell_;
  std::map<int, Link> links_;
  // The descriptors in links_ by rank, or -1, for abandon(): at a fork the map may be in the middle
  // of a change. Set to -1 before the descriptor is closed: its number may be another's by then.
  std::unique_ptr<std::atomic<int>[]> link_fds_;
  std::vector<int> gone_before_;  // whose process had ended when the watch began

  std::mutex mutex_;  // guards inbox_ and ending_
  std::vector<Frame> inbox_;
  struct Ending {
    Goodbye goodbye;
    Nanos linger;
    std::uint32_t collectives;
  };
  std::unique_ptr<Ending> ending_;

  // Written by the watch's thread, read by has_left() and leaver_before(). Relaxed: hints, no data
  // hangs on them. The second is the last collective of each rank.
  std::unique_ptr<std::atomic<bool>[]> left_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> collectives_;
  // The least of them. Written by the watch's thread, which then rings the bells; read by waits,
  // when they begin and whenever they wake. Release, acquire: who sees it finds its rank above.
  std::atomic<std::uint32_t> last_collective_{kEveryCollective};
  // Written by taken(), read by the watch's thread. Relaxed: the timer's grace is far longer than
  // any delay.
  std::atomic<bool> taken_{false};

  // The watch's thread's own.
  Nanos exit_at_ = kNever;
  Nanos end_at_ = kNever;  // set once the end began
  bool ending_begun_ = false;
  std::thread thread_;
};

}  // namespace standfast
