// The watch: the native thread that reads control links and clocks, feeds the machine, and carries
// its verdict to every wait and every rank. It needs no interpreter, so it acts while Python is
// stuck.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/bell.h"
#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/control/abort.h"
#include "core/control/board.h"
#include "core/control/frames.h"
#include "core/control/log.h"
#include "core/control/machine.h"
#include "core/control/poller.h"

namespace standfast {

// A data connection, as the watch sees it.
struct DataLink {
  int rank;
  const std::atomic<std::uint64_t>* received;  // grows with whatever comes in
  int fd;                                      // a TCP connection that carries the data, or -1
  std::string text;                            // "tcp 10.0.0.3:41234"
};

struct WatchConfig {
  Machine::Shape shape;
  WatchLimits limits;
  std::vector<std::pair<int, Fd>> links;       // rank -> control link
  std::vector<std::pair<int, int>> processes;  // rank -> pid, peers of this host
  std::vector<DataLink> data_links;
  std::vector<std::string> hosts;  // by rank, for messages; may be empty
  const Board* board = nullptr;    // what this rank does
  std::vector<const Bell*> bells;  // rung when there is a verdict
  // Set to 1 before anybody here can hear of a verdict, for peers to see; see Wire::own_end.
  std::vector<std::atomic<std::uint32_t>*> ends;
  bool exit_on_fault = false;  // end the process if nobody takes the error
  Nanos exit_grace = 0;
  bool serve_sigterm = false;
  bool logs = false;  // hints and warnings as lines on stderr
  // Ranks that speak another protocol: nothing is ever written to their links, nothing that comes
  // is understood, and the end alone is noted (see departure()). Who has rank 0 among them is
  // solitary.
  std::vector<int> silent;
};

// How the silent link to a rank ended.
struct Departure {
  int rank;
  bool is_expiry;  // its host does not answer
  std::string how;
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
  // The beacon of a rank of this host was passed on: its process ends. Any thread.
  void beacon_died(int rank);
  // The peer said goodbye. Any thread.
  bool has_left(int rank) const {
    return left_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed);
  }
  // The last collective that all ranks take part in: those who left were done with it.
  const std::atomic<std::uint32_t>& last_collective() const { return last_collective_; }
  // Who does not take part in this collective; -1 if all do. Any thread.
  int leaver_before(std::uint32_t collective) const {
    // Acquire: see last_collective_.
    const bool none = collective <= last_collective_.load(std::memory_order_acquire);
    return none ? -1 : find_leaver_before(collective);
  }
  // How the silent link to this rank ended (-1: the first of all), if it did. A rank that is done
  // looks the same as one that died: whether it is missed is for operations to say. Any thread.
  std::optional<Departure> departure(int rank) const;
  // Has any? One load: asked in waits.
  bool has_departures() const { return departed_.load(std::memory_order_acquire); }
  // What is suspected now, by rank. Any thread.
  std::vector<Hint> hints() const;
  // Waits until the count of news (hints that came or went, a verdict, the end) is another than
  // `seen`, and returns it. Any thread.
  std::uint64_t await_news(std::uint64_t seen, Nanos span) const;
  // Did the watch's thread not run for so long that this process was given up meanwhile? One load
  // and a cheap look at the clock: asked after every operation where peers can't show it.
  bool may_have_missed_the_end() const {
    return coarse_now_ns() - turned_at_.load(std::memory_order_relaxed) >= missed_after_;
  }
  // Waits until the watch has read what lay there when this was called, but no longer than `limit`.
  void catch_up(Nanos limit);
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
    std::uint64_t identity = 0;
    bool asked = false;              // at the last review, how its host is
    std::uint64_t acknowledged = 0;  // bytes, as then seen
  };

  void run();
  void serve();
  void fail(const char* why);
  void tell_failure(const Verdict& verdict);
  void await_exit();
  void end_turn();
  void tick();
  Event sample();
  void find_closed_descriptors();
  void find_dead_data_links();
  std::string who(int rank) const;
  void show(const Actions& actions);
  void tell_news();
  void on_ready(const Ready& ready);
  void serve_inbox();
  enum class Until : bool { kNow, kEmpty };
  void read_link(Link& link, Until until = Until::kEmpty);
  int find_leaver_before(std::uint32_t collective) const;
  bool drain_accused(const Frame& frame);
  bool is_silent(int rank) const;
  bool has_loud_links() const;
  void read_silent_link(Link& link);
  void note_departure(int rank, std::string how, int code);
  void link_ended(int rank, std::string how);
  void link_broke(int rank, int code);
  bool let_go(int rank);
  void drop(std::map<int, Link>::iterator link);
  void process_gone(int rank, const std::string& how);
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

  Log log_;
  std::vector<Sight> sights_;
  std::vector<std::uint64_t> received_;  // by data link, as last seen
  int next_to_look_at_ = 0;              // the rank whose link find_closed_descriptors() has next

  std::mutex mutex_;  // guards inbox_, beacons_ and ending_
  std::vector<Frame> inbox_;
  std::vector<int> beacons_;  // ranks whose beacon was passed on
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
  mutable std::mutex departures_mutex_;  // guards departures_
  std::vector<Departure> departures_;    // in their order
  // Set by the watch's thread, read by waits. Release, acquire: who sees it finds the first.
  std::atomic<bool> departed_{false};
  // Written by taken(), read by the watch's thread. Relaxed: the timer's grace is far longer than
  // any delay.
  std::atomic<bool> taken_{false};

  // When the watch's thread was last awake, by the coarse clock. Written by it, read after each
  // operation. Relaxed: only compared with a limit.
  std::atomic<Nanos> turned_at_{coarse_now_ns()};
  const Nanos missed_after_;
  // Threads in catch_up(). Written by them, read by the watch's thread, which does not sleep while
  // there are any. Sequentially consistent: rare, and simplest.
  std::atomic<int> behind_{0};

  mutable std::mutex news_mutex_;  // guards hints_, news_ and turns_
  mutable std::condition_variable news_bell_;
  std::vector<Hint> hints_;
  std::uint64_t news_ = 0;
  std::uint64_t turns_ = 0;  // of the watch's thread, while anybody waits for one

  // The watch's thread's own.
  Nanos exit_at_ = kNever;
  Nanos end_at_ = kNever;  // set once the end began
  bool ending_begun_ = false;
  std::thread thread_;
};

}  // namespace standfast
