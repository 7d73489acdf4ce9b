#include "core/group.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault_hook.h"
#include "core/base/guard.h"
#include "core/collective/algorithms.h"
#include "core/collective/verify.h"
#include "core/fabric/shm/wire.h"
#include "core/fabric/tcp/wire.h"
#include "core/fabric/verbs/wire.h"

namespace standfast {
namespace {

// How long an operation that saw something waits for the watch's verdict, beyond the silence limit,
// which may have to decide first whether rank 0 is there. The machine answers sooner: a backstop.
constexpr Nanos kVerdictMax = 2 * kSecond;
// An interrupted operation does not wait for long: somebody pressed Ctrl-C.
constexpr Nanos kInterruptedMax = 100 * kMillisecond;
// How long an operation waits for its watch to read what lies there.
constexpr Nanos kCatchUpMax = 500 * kMillisecond;
// How long close() waits for an operation that another thread is in.
constexpr Nanos kCloseMax = 1 * kSecond;
// How often wires that tell nothing by themselves are looked at.
constexpr Nanos kPatrolEvery = 1 * kSecond;
// recv of bytes: a size above is taken for damage.
constexpr std::size_t kBlobMax = std::size_t{1} << 40;

// What carries the group's data, the same for all ranks though each sees its own wires only: ranks
// of several hosts have one beyond shared memory each, and over RDMA all or the neighbours have it.
FabricKind group_fabric(const std::vector<WireSpec>& wires) {
  const auto has = [&](FabricKind kind) {
    return std::any_of(wires.begin(), wires.end(),
                       [=](const WireSpec& wire) { return wire.fabric == kind; });
  };
  if (has(FabricKind::kVerbs)) return FabricKind::kVerbs;
  return has(FabricKind::kTcp) ? FabricKind::kTcp : FabricKind::kShm;
}

Halves halves_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::kSend: return Halves::kSending;
    case RequestKind::kReceive:
    case RequestKind::kReceiveBytes: return Halves::kReceiving;
    default: return Halves::kBoth;
  }
}

OpKind op_kind_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::kAllReduce: return OpKind::kAllReduce;
    case RequestKind::kAllGather: return OpKind::kAllGather;
    case RequestKind::kReduceScatter: return OpKind::kReduceScatter;
    case RequestKind::kBroadcast: return OpKind::kBroadcast;
    case RequestKind::kAllToAll: return OpKind::kAllToAll;
    case RequestKind::kGather: return OpKind::kGather;
    case RequestKind::kGatherBytes: return OpKind::kGatherBytes;
    case RequestKind::kScatter: return OpKind::kScatter;
    case RequestKind::kSend:
    case RequestKind::kReceive:
    case RequestKind::kReceiveBytes: return OpKind::kSend;
    case RequestKind::kBarrier: return OpKind::kBarrier;
  }
  return OpKind::kNone;
}

bool has_root(RequestKind kind) {
  return kind == RequestKind::kBroadcast || kind == RequestKind::kGather ||
         kind == RequestKind::kGatherBytes || kind == RequestKind::kScatter;
}

// Operations whose element count only some ranks know: the tag does not compare it.
bool hides_count(RequestKind kind) {
  return kind == RequestKind::kGatherBytes || kind == RequestKind::kScatter;
}

bool is_receive(RequestKind kind) {
  return kind == RequestKind::kReceive || kind == RequestKind::kReceiveBytes;
}

bool is_from_any(const Request& request) {
  return request.kind == RequestKind::kReceive && request.peer == kAnyPeer;
}

std::string operation_text(const Request& request, const Tag& tag) {
  std::string text = describe(tag);
  if (is_receive(request.kind)) text.replace(0, 4, "recv");
  return text;
}

std::unique_ptr<Wire> make_wire(WireSpec spec) {
  if (spec.fabric == FabricKind::kTcp) {
    return std::make_unique<TcpWire>(spec.rank, spec.link, std::move(spec.fd));
  }
  if (spec.fabric == FabricKind::kVerbs) {
    return std::make_unique<VerbsWire>(spec.rank, spec.link, std::move(spec.fd),
                                       std::move(spec.rails));
  }
  auto mapping = std::make_shared<Mapping>(spec.shm_fd.get());
  return std::make_unique<ShmWire>(spec.rank, spec.link, std::move(spec.fd), std::move(mapping),
                                   spec.first);
}

}  // namespace

std::string seconds_text(Nanos span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", to_seconds(span));
  return text;
}

struct Group::Side {
  Side(const Group& group, const Bell& bell, const Bell& neighbour, bool pumps,
       HalfBoard* board = nullptr)
      : waiter(group.abort_, bell, neighbour, pumps,
               spin_budget(group.config_.ranks_here, usable_cores()), group.wires_, board),
        comm(group.config_.shape.rank, group.wires_, waiter) {
    comm.set_verifies(group.config_.verify);
  }
  Waiter waiter;
  Comm comm;
};

Waiter& Group::waiter_of(Side& side) { return side.waiter; }

Group::Group(GroupConfig config)
    : config_(std::move(config)),
      fabric_(group_fabric(config_.wires)),
      jaccl_(std::move(config_.jaccl)) {
  const NoFork no_fork;
  const auto size = static_cast<std::size_t>(config_.shape.size);
  wires_.resize(size);
  sent_.resize(size);
  received_.resize(size);
  for (WireSpec& spec : config_.wires) {
    prepare_socket(spec.fd.get());
    wires_[static_cast<std::size_t>(spec.rank)] = make_wire(std::move(spec));
  }
  sending_ = std::make_unique<Side>(*this, sending_bell_, receiving_bell_, true, &board_.sending);
  receiving_ =
      std::make_unique<Side>(*this, receiving_bell_, sending_bell_, true, &board_.receiving);
  receiving_only_ =
      std::make_unique<Side>(*this, receiving_bell_, sending_bell_, false, &board_.receiving);
  WatchConfig watch;
  watch.shape = config_.shape;
  watch.silent = config_.stock;
  watch.shape.is_solitary =
      std::find(config_.stock.begin(), config_.stock.end(), 0) != config_.stock.end();
  if (!jaccl_) watch.limits = config_.limits;  // there are no beats that could be judged
  const std::vector<int> links = links_for_sentinel();
  watch.links = std::move(config_.control);
  for (const Peer& peer : config_.peers) {
    if (peer.same_host && peer.rank != config_.shape.rank) {
      watch.processes.emplace_back(peer.rank, peer.pid);
    }
  }
  watch.hosts.resize(size);
  for (const Peer& peer : config_.peers)
    watch.hosts.at(static_cast<std::size_t>(peer.rank)) = peer.host;
  for (const auto& wire : wires_) {
    if (!wire) continue;
    watch.data_links.push_back(
        {wire->peer(), &wire->received(), wire->data_socket(), wire->link()});
  }
  watch.board = &board_;
  watch.logs = config_.logs;
  watch.bells = {&sending_bell_, &receiving_bell_, &caller_bell_};
  show_ends(watch);
  watch.exit_on_fault = config_.exit_on_fault;
  watch.exit_grace = config_.exit_grace;
  watch.serve_sigterm = config_.handle_sigterm;
  watch_ = std::make_unique<Watch>(std::move(watch), abort_);
  if (config_.beacon.valid()) light_beacon(links);
  const bool are_silent = std::any_of(wires_.begin(), wires_.end(), [](const auto& wire) {
    return wire && wire->must_be_polled();
  });
  if (are_silent) patrol_.start(kPatrolEvery, [this] { look_after_wires(); });
  enlist(no_fork);
}

// Between ranks that share memory, what one knows of the group's end all can see at once.
void Group::show_ends(WatchConfig& watch) {
  for (const auto& wire : wires_) {
    if (!wire || wire->own_end() == nullptr) continue;
    watch.ends.push_back(wire->own_end());
    peers_ends_.push_back(wire->peers_end());
  }
  if (peers_ends_.size() + 1 < wires_.size()) peers_ends_.clear();
}

// Neighbours on this host tell rank 0. For rank 0 itself, nobody else has a link to other hosts,
// and a rank that is alone on its host has no neighbours.
std::vector<int> Group::links_for_sentinel() const {
  const auto is_here = [&](int rank) {
    return std::any_of(config_.peers.begin(), config_.peers.end(),
                       [&](const Peer& peer) { return peer.rank == rank && peer.same_host; });
  };
  std::vector<int> links;
  for (const auto& [rank, fd] : config_.control) {
    const bool nobody_else_tells =
        config_.shape.rank == 0 ? !is_here(rank) : config_.ranks_here <= 1;
    if (nobody_else_tells) links.push_back(fd.get());
  }
  return links;
}

void Group::light_beacon(const std::vector<int>& links) {
  const int here = config_.shape.rank;
  BeaconConfig beacon;
  beacon.memory = std::move(config_.beacon);
  beacon.rank = here;
  beacon.size = config_.shape.size;
  for (const Peer& peer : config_.peers) {
    if (peer.same_host || peer.rank == here) beacon.ranks_here.push_back(peer.rank);
  }
  beacon.died = [this](int rank) { watch_->beacon_died(rank); };
  beacon.sentinel = config_.sentinel;
  beacon.links = links;
  // Said for this rank when it is dead: by rank 0 to all, by the others to rank 0.
  Frame frame;
  frame.type = here == 0 ? FrameType::kVerdict : FrameType::kReport;
  frame.generation = config_.shape.generation;
  frame.verdict.kind = VerdictKind::kDied;
  frame.verdict.rank = here;  // and no rank has seen it
  frame.verdict.cause = "its process is ending: its beacon was passed on to its sentinel";
  beacon.last_words = encode(frame);
  beacon_ = std::make_unique<Beacon>(std::move(beacon));
}

Group::~Group() {
  close(Watch::Goodbye::kOrderly);
  patrol_.stop();
  const NoFork no_fork;
  resign(no_fork);
  watch_.reset();
  wires_.clear();
  jaccl_.reset();
}

void Group::dispose(std::unique_ptr<Group> group) {
  // The threads do not exist in a forked child: nothing of it can be ended there, only left alone.
  if (group && group->refuses(kForked)) (void)group.release();
}

void Group::abandon() {
  refuses_.fetch_or(kForked);
  for (const auto& wire : wires_) {
    if (wire) wire->abandon();
  }
  watch_->abandon();
}

Group::Side& Group::side_for(RequestKind kind) {
  switch (halves_of(kind)) {
    case Halves::kSending: return *sending_;
    case Halves::kReceiving: return *receiving_only_;
    default: return *receiving_;
  }
}

HalfBoard& Group::board_for(RequestKind kind) {
  return halves_of(kind) == Halves::kSending ? board_.sending : board_.receiving;
}

Tag Group::tag_of(const Request& request, std::uint32_t number) {
  return make_tag(number, op_kind_of(request.kind), request.dtype, request.op,
                  has_root(request.kind) ? request.peer : request.tag,
                  hides_count(request.kind) ? 0 : request.count);
}

// The operation's number: collectives are counted per group, messages per pair and direction. A
// receive from any has none before it knows from whom.
std::uint32_t Group::next_number(const Request& request) {
  if (is_from_any(request)) return 0;
  const auto peer = static_cast<std::size_t>(request.peer);
  switch (halves_of(request.kind)) {
    case Halves::kSending: return ++sent_[peer];
    case Halves::kReceiving: return ++received_[peer];
    case Halves::kBoth: break;
  }
  return ++collectives_;
}

// Why there are no more operations. Once there is a reason there always is one.
Failure Group::refusal() const {
  Verdict verdict;
  verdict.kind = VerdictKind::kClosed;
  verdict.rank = config_.shape.rank;
  if (refuses(kForked)) {
    verdict.cause = "this process is a forked child; the group belongs to its parent";
  } else if (const Verdict* first = abort_.verdict()) {
    return failure_now(*first);
  } else if (refuses(kInterrupted)) {
    verdict.kind = VerdictKind::kLeft;
    verdict.cause = "interrupted";
  } else {
    verdict.cause = "the group was closed";
  }
  return failure_now(verdict);
}

Result Group::run(const Request& request, InterruptCheck interrupted, Hold* hold) {
  if (is_refusing()) [[unlikely]]
    return {refusal(), {}};
  return run_ticketed(request, turnstile_.take(halves_of(request.kind)), interrupted, hold);
}

Result Group::run_ticketed(const Request& request, const Turnstile::Ticket& ticket,
                           InterruptCheck interrupted, Hold* hold) {
  Limits limits;
  limits.interrupted = interrupted;
  limits.hold = hold;
  if (request.timeout != kNever) limits.deadline = deadline_after(now_ns(), request.timeout);
  Result result;
  Side& side = side_for(request.kind);
  Outcome outcome = turnstile_.enter(ticket, abort_, limits);
  if (outcome != Outcome::kOk) {
    // Not its turn: the side belongs to somebody else, so it is not looked at.
    if (hold != nullptr) hold->give_back();
    Side nobody(*this, caller_bell_, caller_bell_, false);
    nobody.comm.begin(tag_of(request, 0));
    result.failure = failed(outcome, request, nobody);
    return result;
  }
  if (is_refusing()) [[unlikely]] {
    result.failure = refusal();
  } else {
    const Tag tag = tag_of(request, next_number(request));
    const bool is_collective = halves_of(request.kind) == Halves::kBoth;
    HalfBoard& board = board_for(request.kind);
    if (is_collective) {
      limits.collective = tag.seq;
      limits.last_collective = &watch_->last_collective();
    }
    if (is_from_any(request)) limits.patience = config_.limits.progress;
    if (jaccl_) bound_jaccl(limits, request, is_collective);
    side.waiter.begin(limits);
    side.comm.begin(tag);
    board.begin(tag);
    outcome = is_deserted(request, tag) ? Outcome::kLeft : execute(request, side, result);
    if (config_.verify && outcome == Outcome::kOk) outcome = verify(request, side.comm);
    if (kGuarded && outcome == Outcome::kOk && is_over(hold)) outcome = Outcome::kVerdict;
    if (outcome != Outcome::kOk) {
      if (hold != nullptr) hold->give_back();
      withdraw();
      result.failure = failed(outcome, request, side);
      const Half half = request.kind == RequestKind::kSend ? Half::kSending : Half::kReceiving;
      if (jaccl_) result.failure->bytes_done = jaccl_->bytes_done(half);
    }
    board.end(tag);
  }
  turnstile_.leave(ticket);
  return result;
}

// After a failure callers get their memory back at once; peers may be reading it.
void Group::withdraw() {
  for (const auto& wire : wires_) {
    if (wire) wire->withdraw();
  }
}

// Has somebody left whom this operation needs? A recv may still find what was sent before.
bool Group::is_deserted(const Request& request, const Tag& tag) const {
  if constexpr (!kGuarded) return false;
  switch (halves_of(request.kind)) {
    case Halves::kBoth: return watch_->leaver_before(tag.seq) >= 0;
    case Halves::kSending: return watch_->has_left(request.peer);
    default: return false;
  }
}

// The last look before an operation counts as done: others may not have come to its end. A process
// that did not run for long may find all its data, and the news of the group's end unread beside
// it. Whoever gave it up shows that in the memory they share; where not all peers share memory
// with this rank, the clock tells whether there was time for it.
bool Group::may_be_over() const {
  if (peers_ends_.empty()) return watch_->may_have_missed_the_end();
  for (const std::atomic<std::uint32_t>* end : peers_ends_) {
    if (end->load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

bool Group::was_ended(Hold* hold) {
  if (abort_.verdict() == nullptr) {
    if (hold != nullptr) hold->give_back();
    watch_->catch_up(kCatchUpMax);
  }
  const Verdict* verdict = abort_.verdict();
  if (verdict == nullptr) return false;
  // A program that raised or closed its group was done with its own part.
  const bool was_done = verdict->kind == VerdictKind::kFailed ||
                        (verdict->kind == VerdictKind::kLeft && verdict->cause == kClosedItsGroup);
  return !was_done;
}

// For a worker: whatever is thrown in there ends the operation, and with it the group.
Result Group::run_guarded(const Request& request, const Turnstile::Ticket& ticket) {
  std::string why = "unknown error";
  try {
    throw_if_asked(ThreadKind::kWorker);
    return run_ticketed(request, ticket, nullptr, nullptr);
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
  }
  watch_->report(VerdictKind::kInternal, config_.shape.rank, "its worker failed: " + why, false);
  if (turnstile_.enter(ticket, abort_, {}) == Outcome::kOk) turnstile_.leave(ticket);
  const Verdict* verdict = await_verdict(verdict_limit());
  Verdict none;
  none.kind = VerdictKind::kInternal;
  none.rank = config_.shape.rank;
  none.cause = "its worker failed: " + why;
  return {failure_now(verdict != nullptr ? *verdict : none), {}};
}

// Results that other ranks hold as well. Messages are compared where they come in; of what
// reduce_scatter gives, no other rank has anything to compare.
Outcome Group::verify(const Request& request, Comm& comm) const {
  const std::size_t bytes = request.count * dtype_bytes(request.dtype);
  const auto size = static_cast<std::size_t>(config_.shape.size);
  switch (request.kind) {
    case RequestKind::kAllReduce:
    case RequestKind::kBroadcast: return verify_same(comm, request.dst, bytes);
    case RequestKind::kAllGather: return verify_same(comm, request.dst, size * bytes);
    case RequestKind::kAllToAll: return verify_blocks(comm, request.src, request.dst, bytes);
    default: return Outcome::kOk;
  }
}

Outcome Group::execute(const Request& request, Side& side, Result& result) {
  if (jaccl_) return execute_jaccl(request, side);
  Comm& comm = side.comm;
  const std::size_t bytes = request.count * dtype_bytes(request.dtype);
  const auto algorithm = [&] {
    const int size = config_.shape.size;
    return choose({op_kind_of(request.kind), bytes, size, config_.topology, fabric_});
  };
  try {
    switch (request.kind) {
      case RequestKind::kAllReduce:
        return all_reduce(comm, algorithm(), Reduction(request.op, request.dtype), request.src,
                          request.dst, request.count);
      case RequestKind::kReduceScatter:
        return reduce_scatter(comm, algorithm(), Reduction(request.op, request.dtype), request.src,
                              request.dst, request.count);
      case RequestKind::kAllGather:
        return all_gather(comm, algorithm(), request.src, request.dst, bytes);
      case RequestKind::kBroadcast: {
        const bool copies = comm.rank() == request.peer && request.dst != request.src;
        if (copies) copy_bytes(request.dst, request.src, bytes);
        return broadcast(comm, algorithm(), request.peer, request.dst, bytes);
      }
      case RequestKind::kAllToAll: return all_to_all(comm, request.src, request.dst, bytes);
      case RequestKind::kGather: return gather(comm, request.peer, request.src, request.dst, bytes);
      case RequestKind::kGatherBytes:
        return gather_bytes(comm, request.peer, request.src, bytes, result.blob);
      case RequestKind::kScatter:
        return scatter(comm, request.peer, {request.src, request.dst, bytes, request.meta},
                       result.blob);
      case RequestKind::kSend: return send(comm, request.peer, request.src, bytes);
      case RequestKind::kReceive:
        if (is_from_any(request)) return receive_from_any(request, comm, &result.from);
        return receive(comm, request.peer, request.dst, bytes);
      case RequestKind::kReceiveBytes:
        return receive_bytes(comm, request.peer, kBlobMax, result.blob);
      case RequestKind::kBarrier: return barrier(comm, algorithm());
    }
  } catch (const std::bad_alloc&) {
    return Outcome::kLimit;
  } catch (const std::length_error&) {
    return Outcome::kLimit;
  }
  return Outcome::kLimit;
}

Outcome Group::receive_from_any(const Request& request, Comm& comm, int* from) {
  SF_TRY(find_sender(comm, request.tag, last_of_any_, from));
  last_of_any_ = *from;
  Tag tag = comm.tag();
  tag.seq = ++received_[static_cast<std::size_t>(*from)];
  comm.begin(tag);
  return receive(comm, *from, request.dst, request.count * dtype_bytes(request.dtype));
}

Failure Group::failure_now(const Verdict& verdict) const {
  Failure failure;
  failure.verdict = verdict;
  if (failure.verdict.detected_ns == 0) failure.verdict.detected_ns = now_ns();
  return failure;
}

Nanos Group::verdict_limit() const {
  const bool judges = config_.limits.silence != kNever && config_.limits.heartbeat != kNever;
  return kVerdictMax + (judges ? config_.limits.silence + 2 * config_.limits.heartbeat : 0);
}

// For callers that hold no side.
const Verdict* Group::await_verdict(Nanos limit) {
  Waiter waiter(abort_, caller_bell_, caller_bell_, false, {}, wires_);
  return waiter.verdict_within(limit);
}

// What this rank saw goes to the watch, which decides for the group.
void Group::report_lost(const Wire& wire, const std::string& trouble) {
  const std::string here = std::to_string(config_.shape.rank);
  const std::string peer = std::to_string(wire.peer());
  watch_->report(VerdictKind::kLinkLost, wire.peer(),
                 "data connection between rank " + here + " and rank " + peer + " (" + wire.link() +
                     "): " + trouble,
                 true);
}

// In the patrol's thread. An idle group has to know before it is needed that a cable was pulled.
void Group::look_after_wires() {
  if (abort_.verdict() != nullptr) return;
  for (const auto& wire : wires_) {
    if (!wire) continue;
    const std::string trouble = wire->ailment();
    if (!trouble.empty()) return report_lost(*wire, trouble);
  }
}

void Group::report_fault(Outcome outcome, const Side& side, const Request& request) {
  const int here = config_.shape.rank;
  const Wire* wire = side.waiter.fault();
  const bool is_collective = halves_of(request.kind) == Halves::kBoth;
  const int leaver = is_collective ? watch_->leaver_before(side.comm.tag().seq) : -1;
  const int peer = wire != nullptr ? wire->peer() : leaver >= 0 ? leaver : request.peer;
  const std::string op = operation_text(request, side.comm.tag());
  if (jaccl_) {
    const int at_fault = side.waiter.fault_peer();
    const int about = at_fault >= 0 ? at_fault : side.waiter.waiting_for();
    if (report_jaccl_fault(outcome, about, side.waiter.waited(), request, op)) return;
  }
  switch (outcome) {
    case Outcome::kLeft: return watch_->report(VerdictKind::kLeft, peer, kClosedItsGroup, false);
    case Outcome::kBroken: return report_lost(*wire, wire->trouble());
    case Outcome::kMismatch: {
      const bool both_p2p =
          side.comm.tag().kind == OpKind::kSend && wire->got().kind == OpKind::kSend;
      const std::string text = "rank " + std::to_string(here) + " is in " + op + ", rank " +
                               std::to_string(peer) + " in " + describe(wire->got());
      return watch_->report(both_p2p ? VerdictKind::kMessageMismatch : VerdictKind::kMismatch, peer,
                            text, false);
    }
    case Outcome::kTimeout: {
      const int waiting_for = side.waiter.waiting_for();
      const bool from_any = is_from_any(request);
      const Nanos limit =
          from_any ? std::min(request.timeout, config_.limits.progress) : request.timeout;
      std::string text =
          "rank " + std::to_string(here) + " waited " + seconds_text(limit) + " in " + op;
      if (waiting_for >= 0) text += " for rank " + std::to_string(waiting_for);
      if (from_any) text += " for any rank";
      return watch_->report(VerdictKind::kNoProgress, waiting_for >= 0 ? waiting_for : here, text,
                            false);
    }
    case Outcome::kInterrupted:
      return watch_->report(VerdictKind::kLeft, here, "interrupted", false);
    case Outcome::kDamaged: {
      const Finding& finding = side.comm.finding();
      return watch_->report(VerdictKind::kDigestMismatch, finding.rank, finding.text + ", in " + op,
                            false);
    }
    case Outcome::kLimit:
      return watch_->report(VerdictKind::kInternal, here, "no memory for the result of " + op,
                            false);
    case Outcome::kOk:
    case Outcome::kPending:
    case Outcome::kVerdict: return;
  }
}

Failure Group::failed(Outcome outcome, const Request& request, Side& side) {
  report_fault(outcome, side, request);
  if (outcome == Outcome::kInterrupted) refuses_.fetch_or(kInterrupted, std::memory_order_relaxed);
  const Verdict* verdict = abort_.verdict();
  if (verdict == nullptr) {
    const bool hurries = outcome == Outcome::kInterrupted;
    verdict = side.waiter.verdict_within(hurries ? kInterruptedMax : verdict_limit());
  }
  Failure failure;
  if (verdict != nullptr) {
    failure = failure_now(*verdict);
  } else {
    Verdict none;
    none.kind = VerdictKind::kInternal;
    none.rank = config_.shape.rank;
    none.cause = "the watch did not answer";
    failure = failure_now(none);
  }
  failure.interrupted = outcome == Outcome::kInterrupted;
  failure.op = operation_text(request, side.comm.tag());
  failure.seq = side.comm.tag().seq;
  failure.waiting_for = side.waiter.waiting_for();
  failure.waited_s = to_seconds(side.waiter.waited());
  failure.bytes_done = side.comm.bytes_done();
  failure.bytes_total = request.count * dtype_bytes(request.dtype);
  return failure;
}

std::shared_ptr<Group::Pending> Group::submit(Request request) {
  auto pending = std::make_shared<Pending>();
  // The place at the turnstile and the place in the worker's queue are one: a worker must not stand
  // in front of the turnstile with a ticket whose forerunner is behind it in its own queue.
  const std::lock_guard lock(submit_mutex_);
  if (is_refusing()) {
    pending->result_.failure = refusal();
    pending->completion_.set();
    return pending;
  }
  Worker& worker = request.kind == RequestKind::kSend ? sending_worker_ : receiving_worker_;
  if (!worker.has_room()) return nullptr;
  const Turnstile::Ticket ticket = turnstile_.take(halves_of(request.kind));
  worker.submit([this, pending, ticket, request = std::move(request)] {
    pending->result_ = run_guarded(request, ticket);
    pending->completion_.set();
    if (rings_completions_.load(std::memory_order_relaxed)) completions_.ring();
  });
  return pending;
}

int Group::completion_fd() {
  rings_completions_.store(true, std::memory_order_relaxed);
  return completions_.fd();
}

std::vector<Hint> Group::hints() const {
  return refuses(kForked) ? std::vector<Hint>{} : watch_->hints();
}

std::uint64_t Group::await_news(std::uint64_t seen, Nanos span) const {
  return refuses(kForked) ? seen : watch_->await_news(seen, span);
}

void Group::program_beats(std::string label, std::uint64_t step) {
  if (!refuses(kForked)) board_.program_beats(std::move(label), step, now_ns());
}

void Group::program_idles() {
  if (!refuses(kForked)) board_.program_idles();
}

bool Group::is_healthy() const {
  return refuses_.load(std::memory_order_relaxed) == 0 && abort_.verdict() == nullptr &&
         !watch_->has_departures();
}

std::optional<Failure> Group::failure() const {
  const Verdict* verdict = abort_.verdict();
  if (verdict == nullptr) return std::nullopt;
  return failure_now(*verdict);
}

void Group::taken() {
  if (!refuses(kForked)) watch_->taken();
}

void Group::abort(std::string reason) {
  if (refuses(kForked) || refuses(kClosed)) return;
  watch_->report(VerdictKind::kAborted, config_.shape.rank, std::move(reason), false);
  (void)await_verdict(kCloseMax);
}

void Group::fail(std::string type, std::string message, std::string traceback) {
  if (refuses(kForked) || refuses(kClosed)) return;
  Verdict verdict;
  verdict.kind = VerdictKind::kFailed;
  verdict.rank = config_.shape.rank;
  verdict.cause = type + ": " + message;
  verdict.remote_type = std::move(type);
  verdict.remote_message = std::move(message);
  verdict.remote_traceback = std::move(traceback);
  watch_->report(std::move(verdict), false);
}

// True if that was done before. Nothing enters a worker's queue from here on.
bool Group::shut_for_submissions() {
  const std::lock_guard lock(submit_mutex_);
  return (refuses_.fetch_or(kClosed) & kClosed) != 0;
}

const char* Group::close(Watch::Goodbye goodbye) {
  if (!refuses(kForked) && !shut_for_submissions()) {
    patrol_.stop();
    // An operation that another thread is in gets a moment to end, then it is ended. After Ctrl-C
    // nobody waits for it.
    const bool interrupted = goodbye == Watch::Goodbye::kInterrupted;
    Limits limits;
    limits.deadline = deadline_after(now_ns(), interrupted ? 0 : kCloseMax);
    const Turnstile::Ticket ticket = turnstile_.take(Halves::kBoth);
    const bool alone = turnstile_.enter(ticket, abort_, limits) == Outcome::kOk;
    if (!alone && abort_.verdict() == nullptr) {
      watch_->report(interrupted ? VerdictKind::kLeft : VerdictKind::kAborted, config_.shape.rank,
                     interrupted ? "interrupted" : "closed while an operation was running", false);
    } else if (goodbye == Watch::Goodbye::kOrderly && abort_.verdict() == nullptr) {
      for (const auto& wire : wires_) {
        if (wire) wire->say_goodbye();
      }
    }
    if (alone) turnstile_.leave(ticket);
    sending_worker_.stop();
    receiving_worker_.stop();
    watch_->end(goodbye, config_.close_linger, alone ? collectives_ : kEveryCollective);
    if (beacon_) beacon_->stop();
    for (const auto& wire : wires_) {
      if (wire) wire->shut_down();
    }
    // The next group may need its queue pairs.
    if (alone) jaccl_.reset();
  }
  const Verdict* verdict = abort_.verdict();
  if (verdict == nullptr) return "orderly";
  switch (verdict->kind) {
    case VerdictKind::kDied:
    case VerdictKind::kLeft:
    case VerdictKind::kUnreachable:
    case VerdictKind::kStalled:
    case VerdictKind::kLinkLost: return "peer_fault";
    default: return "failed";
  }
}

}  // namespace standfast
