// A group of ranks: owns wires, wait and watch, and runs one operation after another. bind/ is its
// only caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fork.h"
#include "core/base/guard.h"
#include "core/collective/choose.h"
#include "core/collective/comm.h"
#include "core/control/abort.h"
#include "core/control/beacon.h"
#include "core/control/loop.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/link.h"
#include "core/jaccl/engine.h"
#include "core/wait/patrol.h"
#include "core/wait/turnstile.h"
#include "core/wait/wait.h"
#include "core/wait/worker.h"

namespace standfast {

struct Peer {
  int rank;
  std::string host;
  int pid;
  bool same_host;
};

struct WireSpec {
  int rank;
  FabricKind fabric;
  Fd fd;
  Fd shm_fd;
  bool first;
  std::string link;
  std::unique_ptr<verbs::Link> rails = nullptr;  // of kVerbs
};

struct GroupConfig {
  Machine::Shape shape;
  std::vector<Peer> peers;
  std::vector<std::pair<int, Fd>> control;
  std::vector<WireSpec> wires;
  // In place of wires: JACCL's protocol. The control links are its side channel then, and those to
  // `stock` ranks are silent.
  std::unique_ptr<jaccl::Engine> jaccl = nullptr;
  std::vector<int> stock;
  Fd beacon;             // the memory in which the ranks of this host meet; invalid: no beacon
  std::string sentinel;  // the program that is this rank's neighbour where there is none
  Topology topology = Topology::kAuto;
  bool verify = false;  // results are compared, by their digests
  int ranks_here = 1;
  WatchLimits limits;
  Nanos close_linger = 0;
  bool exit_on_fault = false;
  Nanos exit_grace = 0;
  bool handle_sigterm = false;
  bool logs = false;
};

// What a caller asks for. Which fields mean what is said at collective/algorithms.h.
enum class RequestKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kGather,
  kGatherBytes,
  kScatter,
  kSend,
  kReceive,
  kReceiveBytes,
  kBarrier,
};

// "0.5 s", "600 s".
std::string seconds_text(Nanos span);

// As the peer of kReceive: whoever sends first.
inline constexpr int kAnyPeer = -1;

struct Request {
  RequestKind kind = RequestKind::kBarrier;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int peer = 0;  // root, destination or source
  std::int32_t tag = 0;
  Nanos timeout = kNever;
  std::vector<std::byte> meta;
};

// Why an operation did not end well: the group's verdict, and what this operation was doing.
struct Failure {
  Verdict verdict;
  bool interrupted = false;  // a signal handler has something to raise
  std::string op;
  std::uint32_t seq = 0;
  int waiting_for = -1;
  double waited_s = 0;
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
};

struct Result {
  std::optional<Failure> failure;
  std::vector<std::byte> blob;
  int from = kAnyPeer;  // of a kReceive from any: who sent
};

class Group final : private ForkSensitive {
 public:
  // Throws SystemError. Owns the configuration's descriptors from here on, also if it throws.
  explicit Group(GroupConfig config);
  ~Group() override;
  // Ends a group that nobody uses any more; in a forked child it is left alone instead.
  static void dispose(std::unique_ptr<Group> group);

  // Runs the operation in this thread. `interrupted` is asked while waiting; `hold` is given back
  // before anything takes long.
  Result run(const Request& request, InterruptCheck interrupted, Hold* hold = nullptr);
  // False once there is a reason to refuse every operation.
  bool is_open() const { return !is_refusing(); }

  // An operation in the hands of a worker.
  class Pending {
   public:
    bool is_done() const { return completion_.is_set(); }
    bool wait(Nanos span, InterruptCheck interrupted, bool* was_interrupted) {
      return completion_.wait(span, interrupted, was_interrupted);
    }
    // Once it is done.
    const Result& result() const { return result_; }

   private:
    friend class Group;
    Completion completion_;
    Result result_;
  };
  // Takes its place behind the operations before it, and returns. Null if too many are waiting.
  std::shared_ptr<Pending> submit(Request request);
  // Readable whenever a submitted operation has ended since the last drain.
  int completion_fd();
  void drain_completions() { completions_.silence(); }

  // Why this rank, alone on its host, has no sentinel though one was asked for; or "".
  std::string sentinel_trouble() const { return beacon_ ? beacon_->sentinel_trouble() : ""; }
  // What is suspected of whom.
  std::vector<Hint> hints() const;
  std::uint64_t await_news(std::uint64_t seen, Nanos span) const;
  // The program's own progress, for programs that communicate by other means.
  void program_beats(std::string label, std::uint64_t step);
  void program_idles();
  bool is_healthy() const;
  // The first cause, or nothing.
  std::optional<Failure> failure() const;
  void taken();
  void abort(std::string reason);
  void fail(std::string type, std::string message, std::string traceback);
  // How it ended: "orderly", "failed" (an error with every peer up) or "peer_fault".
  const char* close(Watch::Goodbye goodbye);

 private:
  struct Side;  // what a thread needs to run operations: a waiter and a comm

  void abandon() override;
  std::vector<int> links_for_sentinel() const;
  void light_beacon(const std::vector<int>& links);
  Result run_ticketed(const Request& request, const Turnstile::Ticket& ticket,
                      InterruptCheck interrupted, Hold* hold);
  Result run_guarded(const Request& request, const Turnstile::Ticket& ticket);
  bool is_over(Hold* hold) {
    return abort_.verdict() != nullptr || may_be_over() ? was_ended(hold) : false;
  }
  bool may_be_over() const;
  bool was_ended(Hold* hold);
  bool is_deserted(const Request& request, const Tag& tag) const;
  void show_ends(WatchConfig& watch);
  void withdraw();
  Outcome execute(const Request& request, Side& side, Result& result);
  Outcome receive_from_any(const Request& request, Comm& comm, int* from);
  Outcome verify(const Request& request, Comm& comm) const;
  static Tag tag_of(const Request& request, std::uint32_t number);
  std::uint32_t next_number(const Request& request);
  Side& side_for(RequestKind kind);
  HalfBoard& board_for(RequestKind kind);
  bool is_refusing() const {
    if constexpr (!kGuarded) return false;
    return abort_.verdict() != nullptr || refuses_.load(std::memory_order_relaxed) != 0;
  }
  // Why there are no operations any more, beside a verdict.
  enum Refusal : std::uint8_t { kClosed = 1, kInterrupted = 2, kForked = 4 };
  bool refuses(Refusal reason) const {
    return (refuses_.load(std::memory_order_relaxed) & reason) != 0;
  }
  Failure refusal() const;
  Failure failed(Outcome outcome, const Request& request, Side& side);
  // group_jaccl.cpp
  Outcome execute_jaccl(const Request& request, Side& side);
  void bound_jaccl(Limits& limits, const Request& request, bool is_collective) const;
  bool report_jaccl_fault(Outcome outcome, int peer, Nanos waited, const Request& request,
                          const std::string& op);
  static Waiter& waiter_of(Side& side);
  void report_fault(Outcome outcome, const Side& side, const Request& request);
  void report_lost(const Wire& wire, const std::string& trouble);
  void look_after_wires();
  Nanos verdict_limit() const;
  const Verdict* await_verdict(Nanos limit);
  bool shut_for_submissions();
  Failure failure_now(const Verdict& verdict) const;

  GroupConfig config_;
  FabricKind fabric_;  // by which algorithms are chosen
  AbortWord abort_;
  Board board_;
  std::vector<std::unique_ptr<Wire>> wires_;  // by rank; null for this one
  std::unique_ptr<jaccl::Engine> jaccl_;      // in place of wires
  Bell sending_bell_;
  Bell receiving_bell_;
  Bell caller_bell_;  // for threads that wait for a verdict without a side
  Bell completions_;
  std::unique_ptr<Side> sending_;    // sends
  std::unique_ptr<Side> receiving_;  // receives, and everything that needs both halves
  std::unique_ptr<Side> receiving_only_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Beacon> beacon_;
  Turnstile turnstile_;
  std::mutex
      submit_mutex_;  // makes taking a ticket and queueing for a worker one step; see close()
  Patrol patrol_;     // looks at wires that tell nothing by themselves
  Worker sending_worker_;
  Worker receiving_worker_;

  // Written by the holder of both halves only; numbers the collectives.
  std::uint32_t collectives_ = 0;
  // Messages to and from each rank. Each vector is written by the holder of that half.
  std::vector<std::uint32_t> sent_;
  std::vector<std::uint32_t> received_;
  int last_of_any_ = 0;  // who sent what was last received from any; by the holder of that half

  // Of each peer that can show that it knows of the group's end: where. Empty unless all can.
  std::vector<const std::atomic<std::uint32_t>*> peers_ends_;

  // Refusals, read at the start of each operation. Set by close(); in a forked child; and by an
  // interrupted operation: what that left half-sent lies in memory that is its caller's again, and
  // the verdict may still be on its way. Relaxed: turnstile and abort word order the rest.
  std::atomic<std::uint8_t> refuses_{0};
  // Rings completions_ only for those who listen. Relaxed: set before the operation that is
  // listened for.
  std::atomic<bool> rings_completions_{false};
};

}  // namespace standfast
