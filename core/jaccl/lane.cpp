#include "core/jaccl/lane.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "core/fabric/verbs/trouble.h"

namespace standfast::jaccl {
namespace {

using verbs::VerbsError;
using verbs::Wc;

// As stock asks for them: devices take up to about 1000 messages of 4 KiB, or as much in fewer, so
// that 32 of the smaller sizes and 4 of the largest are safe.
constexpr int kRequestsMax = 32;
// All of JACCL starts to count there, and assumes that the others do.
constexpr std::uint32_t kFirstPsn = 7;
constexpr int kDarwinNotSupported = 102;

bool is_unsupported(int error) {
  return error == kDarwinNotSupported || error == EOPNOTSUPP || error == ENOSYS;
}

}  // namespace

void Lane::Half::begin(std::size_t message_bytes) {
  message = message_bytes;
  slots = std::min<std::uint64_t>(kRequestsMax, kHalfBytes / message);
  window = slots;
  posted = completed = freed = 0;
}

void Lane::Half::fail(Fault why, std::string text) {
  if (fault != Fault::kNone) return;  // what follows the first is its consequence
  fault = why;
  trouble = std::move(text);
}

// A device may take fewer than it granted: the window is what it took.
bool Lane::Half::was_posted(int error, const char* call, const std::string& lane) {
  if (error == 0) {
    ++posted;
    return true;
  }
  if (std::abs(error) == ENOMEM && under_way() > 0) {
    window = under_way();
    return false;
  }
  fail(Fault::kBroken, std::string(call) + " over " + lane + ": " + verbs::number_text(error));
  return false;
}

Lane::Lane(std::shared_ptr<Port> port, int peer)
    : port_(std::move(port)),
      peer_(peer),
      share_(port_->next_share()),
      type_(port_->is_thunderbolt() ? verbs::QpType::kUc : verbs::QpType::kRc) {
  try {
    create();
    to_init();
  } catch (...) {
    destroy();
    throw;
  }
}

Lane::~Lane() { destroy(); }

void Lane::destroy() {
  const verbs::Library& calls = port_->library();
  if (pair_ != nullptr) calls.destroy_qp(pair_);
  for (Half* half : {&sending_, &receiving_}) {
    if (half->queue != nullptr) calls.destroy_cq(half->queue);
  }
}

// A completion queue for each half, so that two threads never read the same one.
void Lane::create() {
  for (Half* half : {&sending_, &receiving_}) {
    errno = 0;
    half->queue =
        port_->library().create_cq(port_->device().context(), kRequestsMax, nullptr, nullptr, 0);
    if (half->queue == nullptr) {
      verbs::Trouble trouble =
          verbs::refused(port_->name(), "create a completion queue", "ibv_create_cq", errno);
      trouble.code = "no_completion_queue";
      throw VerbsError(std::move(trouble));
    }
  }
  verbs::QpInitAttr attr{};
  attr.send_cq = sending_.queue;
  attr.recv_cq = receiving_.queue;
  attr.qp_type = type_;
  attr.cap = {kRequestsMax, kRequestsMax, 1, 1, 0};
  errno = 0;
  pair_ = port_->library().create_qp(port_->pd(), &attr);
  if (pair_ == nullptr && type_ == verbs::QpType::kRc && is_unsupported(errno)) {
    type_ = attr.qp_type = verbs::QpType::kUc;
    errno = 0;
    pair_ = port_->library().create_qp(port_->pd(), &attr);
  }
  if (pair_ == nullptr) throw VerbsError(verbs::no_queue_pair(port_->name(), type_, errno));
}

void Lane::to_init() {
  verbs::QpAttr attr{};
  attr.qp_state = verbs::QpState::kInit;
  attr.port_num = static_cast<std::uint8_t>(port_->number());
  attr.qp_access_flags =
      verbs::kAccessLocalWrite | verbs::kAccessRemoteRead | verbs::kAccessRemoteWrite;
  const int mask = verbs::kQpState | verbs::kQpPkeyIndex | verbs::kQpPort | verbs::kQpAccessFlags;
  const int error = port_->library().modify_qp(pair_, &attr, mask);
  if (error != 0) {
    throw VerbsError(
        verbs::refused(port_->name(), "bring a queue pair to INIT", "ibv_modify_qp", error));
  }
}

Record Lane::record(const std::string& address) {
  const verbs::PortInfo port = port_->device().port(port_->number());
  if (port.state != verbs::PortState::kActive) {
    throw VerbsError({"port_down",
                      "port " + std::to_string(port.number) + " of " + port_->name() + " is " +
                          verbs::port_state_name(port.state) +
                          " (cable out, or RDMA off at the other end)",
                      "check the cable, and `rdma_ctl status` on both Macs", port_->name(), 0});
  }
  const verbs::GidEntry gid =
      verbs::choose_gid({port_->name(), port.layer, port.gids, address, {}});
  gid_index_ = gid.index;
  gid_ = gid.gid;
  return {port.lid, pair_->qp_num, kFirstPsn, gid.gid};
}

void Lane::connect(const Record& theirs, const std::string& peer_text) {
  const std::string to = peer_text + " (" + verbs::text_of(theirs.gid) + ")";
  if (verbs::is_zero(theirs.gid) && theirs.lid == 0) {
    throw VerbsError({"no_gid",
                      peer_text + " has no address for its end of the cable on " + port_->name() +
                          ": it sent a GID of zeroes",
                      "its port needs an IPv4 address", port_->name(), 0});
  }
  text_ =
      "rdma " + port_->name() + " (" + verbs::text_of(gid_) + ") to " + verbs::text_of(theirs.gid);
  to_receive(theirs, to);
  to_send(to);
}

void Lane::to_receive(const Record& theirs, const std::string& peer_text) {
  verbs::QpAttr attr{};
  attr.qp_state = verbs::QpState::kRtr;
  attr.path_mtu = verbs::Mtu::k1024;  // what JACCL uses, whatever the port says
  attr.rq_psn = theirs.psn;
  attr.dest_qp_num = theirs.queue_pair;
  attr.ah_attr.dlid = static_cast<std::uint16_t>(theirs.lid);
  attr.ah_attr.port_num = static_cast<std::uint8_t>(port_->number());
  if (theirs.gid.global.interface_id != 0) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = theirs.gid;
    attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
    attr.ah_attr.grh.hop_limit = port_->is_thunderbolt() ? 1 : 64;
  }
  int mask =
      verbs::kQpState | verbs::kQpAv | verbs::kQpPathMtu | verbs::kQpDestQpn | verbs::kQpRqPsn;
  if (type_ == verbs::QpType::kRc) {
    attr.min_rnr_timer = 12;
    mask |= verbs::kQpMaxDestRdAtomic | verbs::kQpMinRnrTimer;
  }
  const int error = port_->library().modify_qp(pair_, &attr, mask);
  if (error != 0) throw VerbsError(verbs::no_transition({port_->name(), peer_text}, "RTR", error));
}

void Lane::to_send(const std::string& peer_text) {
  verbs::QpAttr attr{};
  attr.qp_state = verbs::QpState::kRts;
  attr.sq_psn = kFirstPsn;
  int mask = verbs::kQpState | verbs::kQpSqPsn;
  if (type_ == verbs::QpType::kRc) {
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;  // for ever: the peer posts when its program comes to the operation
    mask |= verbs::kQpTimeout | verbs::kQpRetryCnt | verbs::kQpRnrRetry | verbs::kQpMaxRdAtomic;
  }
  const int error = port_->library().modify_qp(pair_, &attr, mask);
  if (error != 0) throw VerbsError(verbs::no_transition({port_->name(), peer_text}, "RTS", error));
}

bool Lane::send() {
  verbs::Sge span{reinterpret_cast<std::uint64_t>(outgoing()),
                  static_cast<std::uint32_t>(sending_.message), port_->key()};
  verbs::SendWr request{};
  request.sg_list = &span;
  request.num_sge = 1;
  request.opcode = verbs::SendOpcode::kSend;
  request.send_flags = verbs::kSendSignaled;
  verbs::SendWr* refused = nullptr;
  const int error = pair_->context->ops.post_send(pair_, &request, &refused);
  const bool sent = sending_.was_posted(error, "ibv_post_send", text_);
  sending_.total += sent;
  return sent;
}

bool Lane::expect() {
  std::byte* const slot = share_ + kHalfBytes + receiving_.offset(receiving_.posted);
  verbs::Sge span{reinterpret_cast<std::uint64_t>(slot),
                  static_cast<std::uint32_t>(receiving_.message), port_->key()};
  verbs::RecvWr request{};
  request.sg_list = &span;
  request.num_sge = 1;
  verbs::RecvWr* refused = nullptr;
  const int error = pair_->context->ops.post_recv(pair_, &request, &refused);
  return receiving_.was_posted(error, "ibv_post_recv", text_);
}

bool Lane::poll_sent() {
  const bool moved = collect(sending_, false);
  sending_.freed = sending_.completed;
  return moved;
}

bool Lane::poll_arrived() { return collect(receiving_, true); }

bool Lane::collect(Half& half, bool is_receive) {
  constexpr int kMost = 8;
  if (half.under_way() == 0 || half.fault != Fault::kNone) return false;
  Wc found[kMost];
  const int count = half.queue->context->ops.poll_cq(half.queue, kMost, found);
  if (count < 0) half.fail(Fault::kBroken, "ibv_poll_cq over " + text_ + " failed");
  for (int i = 0; i < count && half.fault == Fault::kNone; ++i) {
    const Wc& done = found[i];
    const bool fits =
        done.status == verbs::WcStatus::kSuccess && (!is_receive || done.byte_len == half.message);
    const bool is_length =
        done.status == verbs::WcStatus::kLocalLength || done.status == verbs::WcStatus::kSuccess;
    if (fits) {
      ++half.completed;
    } else if (is_length) {
      half.fail(Fault::kOtherSizes,
                "a message of rank " + std::to_string(peer_) + " over " + text_ +
                    " does not have the " + std::to_string(half.message) +
                    " bytes it should have: it is in another operation, or uses other frames");
    } else {
      half.fail(Fault::kBroken, std::string(is_receive ? "a receive" : "a send") + " over " +
                                    text_ + " failed: " + verbs::wc_status_text(done.status));
    }
  }
  return count > 0;
}

std::string Lane::port_trouble() const {
  const verbs::PortState state = port_->device().port_state(port_->number());
  if (state == verbs::PortState::kActive) return "";
  return "port " + std::to_string(port_->number()) + " of " + port_->name() + " is " +
         verbs::port_state_name(state);
}

}  // namespace standfast::jaccl
