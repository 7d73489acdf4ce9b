#include "core/fabric/verbs/rail.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "core/base/error.h"
#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {
namespace {

constexpr int kDarwinNotSupported = 102;
constexpr int kCompletions = kSendSlots[0] + kSendSlots[1] + kReceiveSlots[0] + kReceiveSlots[1];

// A work request's number: what it was, and with which slot.
constexpr std::uint64_t request_id(bool is_receive, Size size, int slot) {
  return std::uint64_t{is_receive} << 32 | std::uint64_t{static_cast<std::uint8_t>(size)} << 16 |
         static_cast<std::uint64_t>(slot);
}

Completion completion_of(const Wc& wc) {
  Completion done;
  done.is_receive = (wc.wr_id >> 32 & 1) != 0;
  done.size = static_cast<Size>(wc.wr_id >> 16 & 1);
  done.slot = static_cast<int>(wc.wr_id & 0xffff);
  done.status = wc.status;
  // Nothing but these is defined if it failed.
  if (done.is_receive && wc.status == WcStatus::kSuccess) done.bytes = wc.byte_len;
  return done;
}

bool is_unsupported(int error) {
  return error == kDarwinNotSupported || error == EOPNOTSUPP || error == ENOSYS;
}

std::string end_text(const RailAddress& end) {
  return end.device + " (" +
         (is_zero(end.gid) ? "LID " + std::to_string(end.lid) : text_of(end.gid)) + ")";
}

const char* layer_name(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::kInfiniBand: return "InfiniBand";
    case LinkLayer::kEthernet: return "Ethernet";
    default: return "unspecified";
  }
}

std::string differ(const char* what, const std::string& ours, const std::string& theirs) {
  return std::string(what) + " " + ours + " here, " + theirs + " there";
}

}  // namespace

std::string mismatch(const RailAddress& ours, const RailAddress& theirs) {
  if (ours.type != theirs.type) {
    const auto name = [](QpType type) { return type == QpType::kRc ? "RC" : "UC"; };
    return differ("queue pairs are", name(ours.type), name(theirs.type));
  }
  if (ours.layer != theirs.layer) {
    return differ("the link layer is", layer_name(ours.layer), layer_name(theirs.layer));
  }
  const bool both_known =
      ours.gid_type != GidType::kUnknown && theirs.gid_type != GidType::kUnknown;
  if (both_known && ours.gid_type != theirs.gid_type) {
    return differ("the GID's type is", gid_type_name(ours.gid_type),
                  gid_type_name(theirs.gid_type));
  }
  if (ours.layer != LinkLayer::kInfiniBand && same(ours.gid, theirs.gid)) {
    return "both ends have the address " + text_of(ours.gid);
  }
  return "";
}

Rail::Rail(std::shared_ptr<Domain> domain)
    : domain_(std::move(domain)),
      type_(domain_->is_thunderbolt() ? QpType::kUc : QpType::kRc),
      share_(domain_->next_share()),
      queue_(domain_->new_queue(kCompletions)) {
  create_pairs();
}

Rail::~Rail() { destroy(); }

void Rail::create_pairs() {
  try {
    make_ready(Size::kSmall);
    if (domain_->has_large()) make_ready(Size::kLarge);
  } catch (...) {
    destroy();
    throw;
  }
}

// What the old ones have left in the completion queue would be taken for the new ones'.
void Rail::renew() {
  destroy();
  Completion old[kCompletions];
  for (int left = kCompletions; left > 0 && this->poll(old, kCompletions) > 0; --left) {
  }
  create_pairs();
}

void Rail::destroy() {
  for (Qp*& pair : pairs_) {
    if (pair != nullptr) domain_->library().destroy_qp(pair);
    pair = nullptr;
  }
}

// Others may have taken what the device had left: then small messages alone must do.
void Rail::make_ready(Size size) {
  Qp* pair = create(size);
  if (pair == nullptr && type_ == QpType::kRc && is_unsupported(errno)) {
    type_ = QpType::kUc;
    pair = create(size);
  }
  if (pair == nullptr && size == Size::kLarge) return;
  if (pair == nullptr) throw VerbsError(no_queue_pair(domain_->name(), type_, errno));
  pairs_[at(size)] = pair;
  to_init(pair);
}

Qp* Rail::create(Size size) {
  QpInitAttr attr{};
  attr.send_cq = queue_;
  attr.recv_cq = queue_;
  attr.qp_type = type_;
  attr.cap.max_send_wr = static_cast<std::uint32_t>(kSendSlots[at(size)]);
  attr.cap.max_recv_wr = static_cast<std::uint32_t>(kReceiveSlots[at(size)]);
  attr.cap.max_send_sge = 1;
  attr.cap.max_recv_sge = 1;
  errno = 0;
  return domain_->library().create_qp(domain_->pd(), &attr);
}

void Rail::to_init(Qp* pair) {
  QpAttr attr{};
  attr.qp_state = QpState::kInit;
  attr.pkey_index = 0;
  attr.port_num = static_cast<std::uint8_t>(domain_->port());
  attr.qp_access_flags = kAccessLocalWrite | kAccessRemoteRead | kAccessRemoteWrite;
  const int mask = kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags;
  const int error = domain_->library().modify_qp(pair, &attr, mask);
  if (error != 0) {
    throw VerbsError(
        refused(domain_->name(), "bring a queue pair to INIT", "ibv_modify_qp", error));
  }
}

RailAddress Rail::address(const std::string& wanted, const std::vector<std::string>& likely) {
  const PortInfo port = domain_->device().port(domain_->port());
  if (port.state != PortState::kActive) {
    throw VerbsError({"port_down",
                      "port " + std::to_string(port.number) + " of " + domain_->name() + " is " +
                          port_state_name(port.state) +
                          " (cable out, or RDMA off at the other end)",
                      "check the cable, and `rdma_ctl status` on both Macs", domain_->name(), 0});
  }
  const GidEntry gid =
      choose_gid({domain_->name(), port.layer, port.gids, wanted, likely, port.gid_error});
  gid_index_ = gid.index;
  ours_.device = domain_->name();
  ours_.port = port.number;
  ours_.lid = port.lid;
  ours_.gid = gid.gid;
  ours_.gid_type = gid.type;
  ours_.layer = port.layer;
  ours_.type = type_;
  ours_.mtu = static_cast<int>(port.mtu);
  for (const Size size : {Size::kSmall, Size::kLarge}) {
    ours_.queue_pairs[at(size)] = has(size) ? pair(size)->qp_num : 0;
  }
  return ours_;
}

void Rail::connect(const RailAddress& theirs, const std::string& peer, std::uint32_t psn) {
  peer_ = peer;
  text_ = end_text(ours_) + " to " + end_text(theirs);
  if (has(Size::kLarge) && theirs.queue_pairs[at(Size::kLarge)] == 0) {
    domain_->library().destroy_qp(pair(Size::kLarge));
    pairs_[at(Size::kLarge)] = nullptr;
  }
  for (const Size size : {Size::kSmall, Size::kLarge}) {
    if (!has(size)) continue;
    to_receive(pair(size), size, theirs, psn);
    to_send(pair(size), psn);
    post_all_receives(size);
  }
}

void Rail::to_receive(Qp* pair, Size size, const RailAddress& theirs, std::uint32_t psn) {
  const bool is_thunderbolt = domain_->is_thunderbolt();
  QpAttr attr{};
  attr.qp_state = QpState::kRtr;
  // Apple's stack takes 1024, whatever its port says.
  attr.path_mtu = is_thunderbolt ? Mtu::k1024 : static_cast<Mtu>(std::min(ours_.mtu, theirs.mtu));
  attr.rq_psn = psn;
  attr.dest_qp_num = theirs.queue_pairs[at(size)];
  attr.ah_attr.dlid = static_cast<std::uint16_t>(theirs.lid);
  attr.ah_attr.port_num = static_cast<std::uint8_t>(domain_->port());
  const bool by_lid = ours_.layer == LinkLayer::kInfiniBand && theirs.lid != 0;
  if (!by_lid) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = theirs.gid;
    attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
    attr.ah_attr.grh.hop_limit = is_thunderbolt ? 1 : 64;
  }
  int mask = kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn;
  if (type_ == QpType::kRc) {
    attr.min_rnr_timer = 12;
    mask |= kQpMaxDestRdAtomic | kQpMinRnrTimer;
  }
  const int error = domain_->library().modify_qp(pair, &attr, mask);
  if (error != 0) {
    throw VerbsError(
        no_transition({domain_->name(), peer_ + ", " + end_text(theirs)}, "RTR", error));
  }
}

void Rail::to_send(Qp* pair, std::uint32_t psn) {
  QpAttr attr{};
  attr.qp_state = QpState::kRts;
  attr.sq_psn = psn;
  int mask = kQpState | kQpSqPsn;
  if (type_ == QpType::kRc) {
    attr.timeout = 14;  // 67 ms; after seven of them the peer's device is given up
    attr.retry_cnt = 7;
    attr.rnr_retry = 6;
    mask |= kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxRdAtomic;
  }
  const int error = domain_->library().modify_qp(pair, &attr, mask);
  if (error != 0) throw VerbsError(no_transition(target(), "RTS", error));
}

// A device may take fewer than it granted: the window is what it took.
void Rail::post_all_receives(Size size) {
  int error = 0;
  int& posted = posted_[at(size)];
  for (posted = 0; posted < kReceiveSlots[at(size)] && error == 0; posted += error == 0) {
    error = post_receive(size, posted);
  }
  const int least = size == Size::kSmall ? kReserve + 1 : 1;
  if (error == 0 || (error == ENOMEM && posted >= least)) return;
  throw VerbsError(refused(domain_->name(), "post a receive", "ibv_post_recv", error));
}

// The slots of both sizes and directions lie behind each other.
std::byte* Rail::receive_slot(Size size, int slot) const {
  return send_slot(size, kSendSlots[at(size)] + slot);
}

std::byte* Rail::send_slot(Size size, int slot) const {
  const std::size_t begin = size == Size::kSmall ? 0 : rail_bytes(false);
  return share_ + begin + static_cast<std::size_t>(slot) * message_bytes(size);
}

int Rail::post_send(Size size, int slot) {
  Sge piece{reinterpret_cast<std::uint64_t>(send_slot(size, slot)),
            static_cast<std::uint32_t>(message_bytes(size)), domain_->key()};
  SendWr request{};
  request.wr_id = request_id(false, size, slot);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = SendOpcode::kSend;
  request.send_flags = kSendSignaled;
  SendWr* bad = nullptr;
  Qp* const to = pair(size);
  return std::abs(to->context->ops.post_send(to, &request, &bad));
}

int Rail::post_receive(Size size, int slot) {
  Sge piece{reinterpret_cast<std::uint64_t>(receive_slot(size, slot)),
            static_cast<std::uint32_t>(message_bytes(size)), domain_->key()};
  RecvWr request{};
  request.wr_id = request_id(true, size, slot);
  request.sg_list = &piece;
  request.num_sge = 1;
  RecvWr* bad = nullptr;
  Qp* const at_pair = pair(size);
  return std::abs(at_pair->context->ops.post_recv(at_pair, &request, &bad));
}

int Rail::poll(Completion* completions, int most) {
  constexpr int kMost = 16;
  Wc found[kMost];
  const int count = queue_->context->ops.poll_cq(queue_, std::min(most, kMost), found);
  for (int i = 0; i < count; ++i) completions[i] = completion_of(found[i]);
  return count;
}

}  // namespace standfast::verbs
