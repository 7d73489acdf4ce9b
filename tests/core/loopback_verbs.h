// A verbs library of one process, for the tests of the fabric: what one queue pair sends, another
// receives at once. It drops what finds no receive, and does to a message what a test asks for.
// The emulator, which joins processes as Apple's stack would, is tested with the same fabric in
// tests/emulator and tests/verbs.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/fabric/verbs/library.h"

namespace standfast::test {

// What happens to a message under way.
enum class Fate { kArrives, kIsLost, kComesTwice, kIsDamaged, kFails };

class Loopback {
 public:
  // One for the process: the library's calls have no place for a pointer to it.
  static Loopback& instance() {
    static Loopback loopback;
    return loopback;
  }

  // Back to a host with these devices, all well. Nothing may be open.
  void reset(std::vector<std::string> names = {"rdma_a", "rdma_b"}) {
    const std::lock_guard lock(mutex_);
    names_ = std::move(names);
    devices_.assign(names_.size(), {});
    for (std::size_t i = 0; i < names_.size(); ++i) {
      names_[i].copy(devices_[i].name, verbs::kNameBytes - 1);
      devices_[i].transport_type = transport;
    }
    fate = [](std::uint64_t) { return Fate::kArrives; };
    refusals.clear();
    state = verbs::PortState::kActive;
    receives_max = 4096;
    sends_max = 4096;
    queue_pairs_max = 10;
    sent = 0;
    dropped = 0;
    closed_in_order = true;
  }

  std::shared_ptr<const verbs::Library> library() {
    auto made = std::make_shared<verbs::Library>();
    made->path = "loopback";
    made->get_device_list = get_device_list;
    made->free_device_list = [](verbs::Device** list) { delete[] list; };
    made->get_device_name = [](verbs::Device* device) {
      return static_cast<const char*>(device->name);
    };
    made->open_device = open_device;
    made->close_device = close_device;
    made->query_device = query_device;
    made->query_port = query_port;
    made->query_gid = query_gid;
    made->alloc_pd = alloc_pd;
    made->dealloc_pd = dealloc_pd;
    made->reg_mr = reg_mr;
    made->dereg_mr = dereg_mr;
    made->create_cq = create_cq;
    made->destroy_cq = destroy_cq;
    made->create_qp = create_qp;
    made->modify_qp = modify_qp;
    made->destroy_qp = destroy_qp;
    made->query_gid_ex = nullptr;
    return made;
  }

  // What a test sets. `fate` is asked with the number of the message, from 0. `refusals`: calls
  // that fail, with their numbers ("reg_mr", 12).
  verbs::Transport transport = verbs::Transport::kThunderbolt;
  std::function<Fate(std::uint64_t)> fate;
  std::map<std::string, int> refusals;
  verbs::PortState state = verbs::PortState::kActive;
  int receives_max = 4096;  // of one queue pair
  int sends_max = 4096;
  int queue_pairs_max = 10;  // of a device
  // What it saw.
  std::uint64_t sent = 0;
  std::uint64_t dropped = 0;  // found no receive
  bool closed_in_order = true;
  int open = 0;  // objects that exist

 private:
  struct Pair;
  struct Queue : verbs::Cq {
    std::deque<verbs::Wc> done;
  };
  struct Pair : verbs::Qp {
    std::uint32_t to = 0;
    std::deque<verbs::RecvWr> receives;
    std::deque<verbs::Sge> pieces;
    int sends = 0;
    bool failed = false;
  };
  struct Opened : verbs::Context {
    int pairs = 0;
    int regions = 0;
    int queues = 0;
    int domains = 0;
  };

  static bool refuses(const char* call) {
    const auto found = instance().refusals.find(call);
    if (found == instance().refusals.end()) return false;
    errno = found->second;
    return true;
  }
  static int code_of(const char* call) { return refuses(call) ? errno : 0; }
  static Opened& opened(verbs::Context* context) { return *static_cast<Opened*>(context); }

  static verbs::Device** get_device_list(int* count) {
    Loopback& self = instance();
    *count = static_cast<int>(self.devices_.size());
    auto** list = new verbs::Device*[self.devices_.size() + 1];
    for (std::size_t i = 0; i < self.devices_.size(); ++i) list[i] = &self.devices_[i];
    list[self.devices_.size()] = nullptr;
    return list;
  }
  static verbs::Context* open_device(verbs::Device* device) {
    if (refuses("open_device")) return nullptr;
    auto* made = new Opened();
    made->device = device;
    made->ops.poll_cq = poll_cq;
    made->ops.post_send = post_send;
    made->ops.post_recv = post_recv;
    ++instance().open;
    return made;
  }
  static int close_device(verbs::Context* context) {
    instance().closed_in_order &= opened(context).domains == 0;
    --instance().open;
    delete &opened(context);
    return 0;
  }
  static int query_device(verbs::Context*, verbs::DeviceAttr* attr) {
    if (const int code = code_of("query_device")) return code;
    attr->max_qp = instance().queue_pairs_max;
    attr->max_mr = 100;
    attr->phys_port_cnt = 1;
    return 0;
  }
  static int query_port(verbs::Context*, std::uint8_t, verbs::PortAttr* attr) {
    if (const int code = code_of("query_port")) return code;
    attr->state = instance().state;
    attr->active_mtu = verbs::Mtu::k1024;
    attr->gid_tbl_len = 2;
    attr->link_layer = verbs::LinkLayer::kEthernet;
    return 0;
  }
  // fe80::1 at 0, and 10.0.0.<device> at 1.
  static int query_gid(verbs::Context* context, std::uint8_t, int index, verbs::Gid* gid) {
    *gid = {};
    if (index == 0) {
      gid->raw[0] = 0xfe;
      gid->raw[1] = 0x80;
      gid->raw[15] = 1;
      return 0;
    }
    gid->raw[10] = gid->raw[11] = 0xff;
    gid->raw[12] = 10;
    gid->raw[15] = static_cast<std::uint8_t>(context->device - instance().devices_.data() + 1);
    return 0;
  }
  static verbs::Pd* alloc_pd(verbs::Context* context) {
    errno = 0;
    if (instance().state != verbs::PortState::kActive || refuses("alloc_pd")) return nullptr;
    auto* made = new verbs::Pd();
    made->context = context;
    ++opened(context).domains;
    return made;
  }
  static int dealloc_pd(verbs::Pd* pd) {
    Opened& context = opened(pd->context);
    instance().closed_in_order &= context.queues == 0 && context.regions == 0;
    --context.domains;
    delete pd;
    return 0;
  }
  static verbs::Mr* reg_mr(verbs::Pd* pd, void* memory, std::size_t bytes, int) {
    if (refuses("reg_mr")) return nullptr;
    auto* made = new verbs::Mr();
    made->context = pd->context;
    made->addr = memory;
    made->length = bytes;
    made->lkey = 7;
    ++opened(pd->context).regions;
    return made;
  }
  static int dereg_mr(verbs::Mr* mr) {
    Opened& context = opened(mr->context);
    instance().closed_in_order &= context.pairs == 0;
    --context.regions;
    delete mr;
    return 0;
  }
  static verbs::Cq* create_cq(verbs::Context* context, int, void*, verbs::CompChannel*, int) {
    if (refuses("create_cq")) return nullptr;
    auto* made = new Queue();
    made->context = context;
    ++opened(context).queues;
    return made;
  }
  static int destroy_cq(verbs::Cq* cq) {
    Opened& context = opened(cq->context);
    instance().closed_in_order &= context.pairs == 0 && context.regions == 0;
    --context.queues;
    delete static_cast<Queue*>(cq);
    return 0;
  }
  static verbs::Qp* create_qp(verbs::Pd* pd, verbs::QpInitAttr* attr) {
    if (refuses("create_qp")) return nullptr;
    Opened& context = opened(pd->context);
    Loopback& self = instance();
    const std::lock_guard lock(self.mutex_);
    if (context.pairs >= self.queue_pairs_max) {
      errno = EBUSY;
      return nullptr;
    }
    auto* made = new Pair();
    made->context = pd->context;
    made->send_cq = attr->send_cq;
    made->recv_cq = attr->recv_cq;
    made->qp_num = ++self.last_number_;
    self.pairs_[made->qp_num] = made;
    ++context.pairs;
    return made;
  }
  static int modify_qp(verbs::Qp* qp, verbs::QpAttr* attr, int) {
    const char* const names[] = {"RESET", "INIT", "RTR", "RTS"};
    if (const int code = code_of(names[static_cast<int>(attr->qp_state)])) return code;
    if (attr->qp_state == verbs::QpState::kRtr) static_cast<Pair*>(qp)->to = attr->dest_qp_num;
    return 0;
  }
  static int destroy_qp(verbs::Qp* qp) {
    Loopback& self = instance();
    const std::lock_guard lock(self.mutex_);
    self.pairs_.erase(qp->qp_num);
    --opened(qp->context).pairs;
    delete static_cast<Pair*>(qp);
    return 0;
  }

  static int post_recv(verbs::Qp* qp, verbs::RecvWr* request, verbs::RecvWr**) {
    Loopback& self = instance();
    const std::lock_guard lock(self.mutex_);
    if (const int code = code_of("post_recv")) return code;
    auto& pair = *static_cast<Pair*>(qp);
    // As Apple's gives it.
    if (static_cast<int>(pair.receives.size()) >= self.receives_max) return -ENOMEM;
    pair.receives.push_back(*request);
    pair.pieces.push_back(*request->sg_list);
    return 0;
  }
  static int post_send(verbs::Qp* qp, verbs::SendWr* request, verbs::SendWr**) {
    Loopback& self = instance();
    const std::lock_guard lock(self.mutex_);
    if (const int code = code_of("post_send")) return code;
    auto& from = *static_cast<Pair*>(qp);
    if (from.sends >= self.sends_max) return -ENOMEM;
    ++from.sends;
    const Fate kind = self.fate(self.sent++);
    if (kind != Fate::kIsLost) self.deliver(from, *request, kind);
    if (kind == Fate::kComesTwice) self.deliver(from, *request, kind);
    complete(from.send_cq, request->wr_id, verbs::WcStatus::kSuccess, 0, &from);
    return 0;
  }
  void deliver(const Pair& from, const verbs::SendWr& request, Fate kind) {
    const auto found = pairs_.find(from.to);
    if (found == pairs_.end() || found->second->receives.empty()) {
      ++dropped;
      return;
    }
    Pair& to = *found->second;
    const verbs::Sge piece = to.pieces.front();
    const std::uint64_t id = to.receives.front().wr_id;
    to.pieces.pop_front();
    to.receives.pop_front();
    if (kind == Fate::kFails) {
      complete(to.recv_cq, id, verbs::WcStatus::kGeneral, 0, nullptr);
      // Whatever else it had is flushed.
      for (const verbs::RecvWr& rest : to.receives) {
        complete(to.recv_cq, rest.wr_id, verbs::WcStatus::kFlushed, 0, nullptr);
      }
      to.receives.clear();
      return;
    }
    auto* memory = reinterpret_cast<std::byte*>(piece.addr);
    std::memcpy(memory, reinterpret_cast<const void*>(request.sg_list->addr),
                request.sg_list->length);
    if (kind == Fate::kIsDamaged) memory[sizeof(std::uint64_t) * 9] ^= std::byte{4};
    complete(to.recv_cq, id, verbs::WcStatus::kSuccess, request.sg_list->length, nullptr);
  }
  static void complete(verbs::Cq* cq, std::uint64_t id, verbs::WcStatus status, std::uint32_t bytes,
                       Pair* sender) {
    verbs::Wc wc{};
    wc.wr_id = id;
    wc.status = status;
    wc.byte_len = bytes;
    wc.qp_num = sender != nullptr ? sender->qp_num : 0;
    static_cast<Queue*>(cq)->done.push_back(wc);
  }
  static int poll_cq(verbs::Cq* cq, int most, verbs::Wc* found) {
    Loopback& self = instance();
    const std::lock_guard lock(self.mutex_);
    auto& done = static_cast<Queue*>(cq)->done;
    int count = 0;
    for (; count < most && !done.empty(); ++count) {
      found[count] = done.front();
      done.pop_front();
      const auto sender = self.pairs_.find(found[count].qp_num);
      if (sender != self.pairs_.end()) --sender->second->sends;
    }
    return count;
  }

  std::mutex mutex_;  // guards everything: the ends are used by threads of their own
  std::vector<std::string> names_;
  std::vector<verbs::Device> devices_;
  std::map<std::uint32_t, Pair*> pairs_;
  std::uint32_t last_number_ = 100;
};

}  // namespace standfast::test
