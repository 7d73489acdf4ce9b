// A group that speaks JACCL's protocol: which operations it has, what bounds their waits, and what
// its faults mean. Its ranks may be stock ones, which tell nothing: an end of a rank shows by the
// end of its side channel, and everything else by the clock alone.
#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/group.h"

namespace standfast {
namespace {

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

// Only rank 0 has a side channel to every rank.
constexpr const char* kOnlyRank0Sees =
    "the other ranks' side channels end at rank 0: it may have ended because one of them did";

}  // namespace

Outcome Group::execute_jaccl(const Request& request, Side& side) {
  jaccl::Engine& engine = *jaccl_;
  Waiter& waiter = waiter_of(side);
  const std::size_t bytes = request.count * dtype_bytes(request.dtype);
  const jaccl::Reduction reduction{request.src, request.dst, request.count, request.dtype,
                                   request.op};
  switch (request.kind) {
    case RequestKind::kAllReduce: return engine.all_reduce(waiter, reduction);
    case RequestKind::kReduceScatter: return engine.reduce_scatter(waiter, reduction);
    case RequestKind::kAllGather: return engine.all_gather(waiter, request.src, request.dst, bytes);
    case RequestKind::kSend: return engine.send(waiter, request.peer, request.src, bytes);
    case RequestKind::kReceive: return engine.receive(waiter, request.peer, request.dst, bytes);
    case RequestKind::kBarrier: return engine.barrier(waiter);
    case RequestKind::kBroadcast:
    case RequestKind::kAllToAll:
    case RequestKind::kGather:
    case RequestKind::kGatherBytes:
    case RequestKind::kScatter:
    case RequestKind::kReceiveBytes: break;
  }
  SF_CHECK(false && "JACCL has no such operation: Python refuses it");
  return Outcome::kLimit;
}

// As long as nobody has sent anything, the others may still be loading.
void Group::bound_jaccl(Limits& limits, const Request& request, bool is_collective) const {
  const WatchLimits& own = config_.limits;
  const bool is_starting = !jaccl_->has_heard();
  limits.patience = own.progress == kNever
                        ? kNever
                        : std::max(own.progress, is_starting ? own.startup : Nanos{0});
  const int needed = is_collective ? -1 : request.peer;
  limits.gone = [this, needed] {
    if (needed >= 0 && watch_->has_left(needed)) return needed;
    if (!watch_->has_departures()) return -1;
    const auto departure = watch_->departure(needed);
    return departure ? departure->rank : -1;
  };
}

bool Group::report_jaccl_fault(Outcome outcome, int peer, Nanos waited, const Request& request,
                               const std::string& op) {
  if (peer < 0) peer = config_.shape.rank;
  const auto departure = watch_->departure(peer);
  const std::string& trouble =
      jaccl_->trouble(request.kind == RequestKind::kSend ? Half::kSending : Half::kReceiving);
  const std::string here = rank_text(config_.shape.rank);
  if ((outcome == Outcome::kLeft || outcome == Outcome::kBroken) && departure) {
    Verdict verdict;
    verdict.kind = departure->is_expiry ? VerdictKind::kUnreachable : VerdictKind::kDied;
    verdict.rank = peer;
    verdict.cause = "its side channel " + departure->how;
    if (outcome == Outcome::kBroken) verdict.evidence.push_back(trouble);
    if (config_.shape.rank != 0 && config_.shape.size > 2) {
      verdict.evidence.emplace_back(kOnlyRank0Sees);
    }
    watch_->report(std::move(verdict), false);
    return true;
  }
  switch (outcome) {
    case Outcome::kBroken:
      watch_->report(VerdictKind::kLinkLost, peer,
                     "data connection between " + here + " and " + rank_text(peer) + " (" +
                         jaccl_->link(peer) + "): " + trouble,
                     false);
      return true;
    case Outcome::kMismatch:
      watch_->report(VerdictKind::kMismatch, peer, here + " is in " + op + ": " + trouble, false);
      return true;
    case Outcome::kTimeout: {
      // Behind another operation of this rank it did not wait for a peer yet.
      const Nanos span = waited > 0 ? waited : request.timeout;
      std::string text = here + " waited " + seconds_text(span) + " in " + op;
      if (peer != config_.shape.rank) text += " for " + rank_text(peer);
      watch_->report(VerdictKind::kNoProgress, peer, std::move(text), false);
      return true;
    }
    default: return false;
  }
}

}  // namespace standfast
