// Queue pairs: making, connecting, destroying. Called by programs, from any thread.
#include <unistd.h>

#include <algorithm>

#include "emulator/clock.h"
#include "emulator/exports.h"
#include "emulator/gid.h"
#include "emulator/owner.h"
#include "emulator/transfer.h"

namespace standfast::emulator {
namespace {

using verbs::Qp;
using verbs::QpAttr;
using verbs::QpState;
using verbs::QpType;

// A destroyed queue pair's last messages are given this long to be taken by a peer that lives.
constexpr std::int64_t kDrainNs = 50'000'000;
constexpr std::uint32_t kInlineBytesMax = 256;

int hook_at(const EmulatedDevice& device, Call call) {
  return hook(device.store(), nullptr, static_cast<int>(device.port), call);
}

std::uint32_t number_of(std::size_t slot, std::uint32_t incarnation) {
  return static_cast<std::uint32_t>(slot + 1) << 8 | (incarnation & 0xff);
}

// A free place, that which has been free for longest: what its former owner sent may still be
// unread.
int claim_endpoint(const EmulatedDevice& device) {
  const Store& store = device.store();
  const std::uint32_t places = store.header().endpoints_per_port;
  const std::uint32_t limit = std::min(device.shared().queue_pair_limit.load(), places);
  std::uint32_t in_use = 0;
  std::uint32_t first = 0;
  for (std::uint32_t i = 0; i < places; ++i) {
    const Endpoint& each = store.endpoint(device.port, i);
    if (!is_alive(each.owner.load(std::memory_order_acquire))) continue;
    ++in_use;
    first = i + 1;
  }
  if (in_use >= limit) return -1;
  for (std::uint32_t i = 0; i < places; ++i) {
    const std::uint32_t slot = (first + i) % places;
    if (claim(store.endpoint(device.port, slot).owner)) return static_cast<int>(slot);
  }
  return -1;
}

// A new number, so that messages for the former owner go nowhere.
void renumber(Endpoint& endpoint) {
  const std::uint32_t before = endpoint.incarnation.load(std::memory_order_relaxed);
  endpoint.incarnation.store((before & ~0xffu) | ((before + 1) & 0xff), std::memory_order_seq_cst);
}

int refusal_of(const EmulatedDevice& device, const verbs::QpInitAttr& wanted) {
  const Header& header = device.store().header();
  const bool is_apple = header.profile == Profile::kApple;
  const bool is_offered =
      wanted.qp_type == QpType::kUc || (wanted.qp_type == QpType::kRc && !is_apple);
  if (!is_offered) return darwin::kNotSupported;
  if (wanted.send_cq == nullptr || wanted.recv_cq == nullptr || wanted.srq != nullptr) {
    return darwin::kInvalid;
  }
  const verbs::QpCap& caps = wanted.cap;
  const Limits& limits = header.limits;
  const bool is_too_much =
      caps.max_send_wr > limits.work_requests || caps.max_recv_wr > limits.work_requests ||
      caps.max_send_sge > limits.gather_entries || caps.max_recv_sge > limits.gather_entries ||
      caps.max_inline_data > (is_apple ? 0 : kInlineBytesMax);
  return is_too_much ? darwin::kInvalid : 0;
}

void attach(verbs::Cq* base, QueuePair* pair) {
  auto& queue = *static_cast<CompletionQueue*>(base);
  const std::lock_guard lock(queue.members_mutex);
  if (std::find(queue.members.begin(), queue.members.end(), pair) == queue.members.end()) {
    queue.members.push_back(pair);
  }
}

void detach(verbs::Cq* base, QueuePair* pair) {
  auto& queue = *static_cast<CompletionQueue*>(base);
  const std::lock_guard lock(queue.members_mutex);
  std::erase(queue.members, pair);
}

QueuePair* make_pair(verbs::Pd* domain, const EmulatedDevice& device, std::size_t slot,
                     const verbs::QpInitAttr& wanted) {
  const Store& store = device.store();
  auto* pair = new QueuePair{};
  pair->context = domain->context;
  pair->qp_context = wanted.qp_context;
  pair->pd = domain;
  pair->send_cq = wanted.send_cq;
  pair->recv_cq = wanted.recv_cq;
  pair->qp_type = wanted.qp_type;
  pair->handle = static_cast<std::uint32_t>(slot);
  pair->device = static_cast<EmulatedContext*>(domain->context)->emulated;
  pair->slot = slot;
  pair->own = &store.endpoint(device.port, slot);
  const int cable = device.shared().cable;
  pair->cable = cable < 0 ? nullptr : &store.cable(static_cast<std::size_t>(cable));
  pair->caps = wanted.cap;
  pair->signal_all = wanted.sq_sig_all != 0;
  pair->pid = getpid();
  pair->arena.memory = store.arena(device.port, slot);
  renumber(*pair->own);
  reset_pair(*pair);
  pair->qp_num = number_of(slot, pair->own->incarnation.load(std::memory_order_relaxed));
  return pair;
}

// --- state changes

// Attributes that each step has to set, as the InfiniBand specification lists them.
int needed_mask(QpType type, QpState to) {
  using namespace verbs;
  const bool is_reliable = type == QpType::kRc;
  switch (to) {
    case QpState::kInit: return kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags;
    case QpState::kRtr:
      return kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn |
             (is_reliable ? kQpMaxDestRdAtomic | kQpMinRnrTimer : 0);
    case QpState::kRts:
      return kQpState | kQpSqPsn |
             (is_reliable ? kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxRdAtomic : 0);
    default: return kQpState;
  }
}

bool may_follow(QpState from, QpState to) {
  switch (to) {
    case QpState::kReset:
    case QpState::kErr: return true;
    case QpState::kInit: return from == QpState::kReset || from == QpState::kInit;
    case QpState::kRtr: return from == QpState::kInit;
    case QpState::kRts: return from == QpState::kRtr || from == QpState::kRts;
    default: return false;
  }
}

Call call_of(QpState to) {
  switch (to) {
    case QpState::kInit: return Call::kModifyInit;
    case QpState::kRtr: return Call::kModifyRtr;
    case QpState::kRts: return Call::kModifyRts;
    default: return Call::kModifyOther;
  }
}

int find_gid(const Port& port, const verbs::Gid& gid) {
  for (std::size_t i = 0; i < kGidsMax; ++i) {
    if (is_same(bytes_of(entry_at(port, i)), gid)) return static_cast<int>(i);
  }
  return -1;
}

// The port at another end of this cable that has the address; -1: none.
int find_peer_port(const QueuePair& pair, const verbs::Gid& gid) {
  const Store& store = pair.store();
  const int cable = pair.device->shared().cable;
  for (std::size_t port = 0; port < store.header().ports; ++port) {
    if (port == pair.device->port || store.port(port).cable != cable || cable < 0) continue;
    if (find_gid(store.port(port), gid) >= 0) return static_cast<int>(port);
  }
  return -1;
}

// The port at another end of this cable that has the local address; -1: none.
int find_peer_port(const QueuePair& pair, std::uint16_t lid) {
  const Store& store = pair.store();
  const int cable = pair.device->shared().cable;
  const std::size_t port = lid == 0 ? store.header().ports : lid - std::size_t{1};
  const bool is_it = port < store.header().ports && cable >= 0 && store.port(port).cable == cable &&
                     port != pair.device->port;
  return is_it ? static_cast<int>(port) : -1;
}

// Which port a route leads to, or the number with which the route is refused.
int find_route(const QueuePair& pair, const verbs::AhAttr& to, std::size_t& peer_port) {
  const Store& store = pair.store();
  const Port& port = pair.device->shared();
  const verbs::Gid& gid = to.grh.dgid;
  int found = -1;
  if (to.is_global == 0) {
    if (store.header().profile != Profile::kInfiniBand) return darwin::kInvalid;
    found = find_peer_port(pair, to.dlid);
  } else {
    if (is_zero(gid) || to.grh.sgid_index >= kGidsMax) return darwin::kInvalid;
    const verbs::Gid own = bytes_of(entry_at(port, to.grh.sgid_index));
    if (is_zero(own) || is_ipv4(own) != is_ipv4(gid)) return darwin::kInvalid;
    found = find_peer_port(pair, gid);
  }
  if (found < 0 || !store.is_active(port)) return darwin::kTimedOut;
  peer_port = static_cast<std::size_t>(found);
  return 0;
}

int connect(QueuePair& pair, const QpAttr& wanted) {
  const Store& store = pair.store();
  const bool is_apple = store.header().profile == Profile::kApple;
  const verbs::Mtu mtu_max = is_apple ? verbs::Mtu::k1024 : verbs::Mtu::k4096;
  if (wanted.ah_attr.port_num != 1) return darwin::kInvalid;
  if (wanted.path_mtu < verbs::Mtu::k256 || wanted.path_mtu > mtu_max) return darwin::kInvalid;
  std::size_t port = 0;
  if (const int number = find_route(pair, wanted.ah_attr, port); number != 0) return number;
  const std::uint32_t wanted_slot = (wanted.dest_qp_num >> 8) - 1;
  const bool is_place = wanted_slot < store.header().endpoints_per_port;
  const std::uint32_t slot = is_place ? wanted_slot : 0;
  pair.peer.endpoint = &store.endpoint(port, slot);
  pair.peer.arena = store.arena(port, slot);
  pair.peer.cable_epoch = pair.cable->epoch.load(std::memory_order_acquire);
  const std::uint32_t incarnation = pair.peer.endpoint->incarnation.load(std::memory_order_acquire);
  // Nobody is at that number: then nobody will ever be. Incarnations only grow.
  const bool is_it = is_place && number_of(slot, incarnation) == wanted.dest_qp_num;
  pair.peer.incarnation = is_it ? incarnation : incarnation - 1;
  return 0;
}

void remember(QpAttr& known, const QpAttr& wanted, int mask) {
  using namespace verbs;
  if (mask & kQpPkeyIndex) known.pkey_index = wanted.pkey_index;
  if (mask & kQpPort) known.port_num = wanted.port_num;
  if (mask & kQpAccessFlags) known.qp_access_flags = wanted.qp_access_flags;
  if (mask & kQpAv) known.ah_attr = wanted.ah_attr;
  if (mask & kQpPathMtu) known.path_mtu = wanted.path_mtu;
  if (mask & kQpDestQpn) known.dest_qp_num = wanted.dest_qp_num;
  if (mask & kQpRqPsn) known.rq_psn = wanted.rq_psn;
  if (mask & kQpSqPsn) known.sq_psn = wanted.sq_psn;
  if (mask & kQpTimeout) known.timeout = wanted.timeout;
  if (mask & kQpRetryCnt) known.retry_cnt = wanted.retry_cnt;
  if (mask & kQpRnrRetry) known.rnr_retry = wanted.rnr_retry;
  if (mask & kQpMinRnrTimer) known.min_rnr_timer = wanted.min_rnr_timer;
  if (mask & kQpMaxRdAtomic) known.max_rd_atomic = wanted.max_rd_atomic;
  if (mask & kQpMaxDestRdAtomic) known.max_dest_rd_atomic = wanted.max_dest_rd_atomic;
}

void set_state(QueuePair& pair, QpState state) {
  pair.state = state;
  pair.own->state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
}

int change_state(QueuePair& pair, const QpAttr& wanted, int mask) {
  const QpState to = wanted.qp_state;
  const int needed = needed_mask(pair.qp_type, to);
  if (!may_follow(pair.state, to) || (mask & needed) != needed) return darwin::kInvalid;
  if (to == QpState::kInit && (wanted.port_num != 1 || wanted.pkey_index != 0)) {
    return darwin::kInvalid;
  }
  if (to == QpState::kRtr) {
    if (const int number = connect(pair, wanted); number != 0) return number;
  }
  remember(pair.attributes, wanted, mask);
  if (to == QpState::kErr) {
    fail_pair(pair, verbs::WcStatus::kFlushed);
  } else if (to == QpState::kReset) {
    reset_pair(pair);
  } else {
    set_state(pair, to);
  }
  advance(pair);
  return 0;
}

// What was sent has left; a peer that is stopped is not waited for.
void drain(QueuePair& pair) {
  const std::int64_t until = now_ns() + kDrainNs;
  while (pair.peer.endpoint != nullptr && pair.written > 0 && now_ns() < until) {
    const Endpoint& peer = *pair.peer.endpoint;
    const bool is_it = peer.incarnation.load(std::memory_order_acquire) == pair.peer.incarnation;
    const std::uint64_t consumed = peer.consumed.load(std::memory_order_acquire);
    if (!is_it || consumed >= pair.written || !is_alive(peer.owner.load())) return;
    sleep_ns(100'000);
  }
}

}  // namespace

VERBS_API Qp* ibv_create_qp(verbs::Pd* base, verbs::QpInitAttr* wanted) {
  auto& domain = *static_cast<ProtectionDomain*>(base);
  auto& context = *static_cast<EmulatedContext*>(domain.context);
  EmulatedDevice& device = *context.emulated;
  if (const int number = hook_at(device, Call::kCreateQp); number != 0) return refuse<Qp>(number);
  if (const int number = refusal_of(device, *wanted); number != 0) return refuse<Qp>(number);
  const int slot = claim_endpoint(device);
  if (slot < 0) return refuse<Qp>(darwin::kBusy);
  QueuePair* pair = make_pair(base, device, static_cast<std::size_t>(slot), *wanted);
  attach(pair->send_cq, pair);
  attach(pair->recv_cq, pair);
  ++domain.queue_pairs;
  const std::lock_guard lock(library().mutex);
  library().queue_pairs.push_back(pair);
  return pair;
}

VERBS_API int ibv_modify_qp(Qp* base, QpAttr* wanted, int mask) {
  auto& pair = *static_cast<QueuePair*>(base);
  const bool changes = (mask & verbs::kQpState) != 0;
  const Call call = changes ? call_of(wanted->qp_state) : Call::kModifyOther;
  if (const int number = hook_at(*pair.device, call); number != 0) return number;
  const std::lock_guard lock(pair.mutex);
  if (changes) return change_state(pair, *wanted, mask);
  remember(pair.attributes, *wanted, mask);
  return 0;
}

VERBS_API int ibv_query_qp(Qp* base, QpAttr* told, int, verbs::QpInitAttr* init) {
  auto& pair = *static_cast<QueuePair*>(base);
  if (const int number = hook_at(*pair.device, Call::kQueryQp); number != 0) return number;
  const std::lock_guard lock(pair.mutex);
  *told = pair.attributes;
  told->qp_state = told->cur_qp_state = pair.state;
  told->cap = pair.caps;
  *init = verbs::QpInitAttr{.qp_context = pair.qp_context,
                            .send_cq = pair.send_cq,
                            .recv_cq = pair.recv_cq,
                            .srq = nullptr,
                            .cap = pair.caps,
                            .qp_type = pair.qp_type,
                            .sq_sig_all = pair.signal_all ? 1 : 0};
  return 0;
}

VERBS_API int ibv_destroy_qp(Qp* base) {
  auto* pair = static_cast<QueuePair*>(base);
  // A forked child has a copy of what is its parent's.
  if (pair->pid != getpid()) return 0;
  if (const int number = hook_at(*pair->device, Call::kDestroyQp); number != 0) return number;
  const bool is_apple = pair->store().header().profile == Profile::kApple;
  if (is_apple && pair->state == QpState::kErr) {
    pair->store().report("destroy_qp " + pair->device->name_at_host() +
                         ": it is in the error state; on Macs, unmapping its memory then fails");
  }
  detach(pair->send_cq, pair);
  detach(pair->recv_cq, pair);
  {
    const std::lock_guard lock(library().mutex);
    std::erase(library().queue_pairs, pair);
  }
  drain(*pair);
  pair->own->state.store(static_cast<std::uint32_t>(QpState::kReset), std::memory_order_release);
  // Pairs with the acquire in claim(): whoever comes next comes after all that.
  pair->own->owner.store(0, std::memory_order_release);
  --static_cast<ProtectionDomain*>(pair->pd)->queue_pairs;
  delete pair;
  return 0;
}

// Null: the extended interface is not offered, and programs use ibv_post_send.
VERBS_API void* ibv_qp_to_qp_ex(Qp*) { return nullptr; }

}  // namespace standfast::emulator
