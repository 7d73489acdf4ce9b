// The binary interface of a verbs library: the layouts and numbers on which programs and
// librdma.dylib (macOS) or libibverbs.so.1 (Linux) have agreed. Ours, so that nothing is needed to
// build; used by the fabric that loads such a library, and by the emulator that is one.
//
// Only what both systems lay out alike is here: of objects that the library makes, the fields in
// front of the first pthread member. tests/core/verbs_abi_test.cpp compares it with
// <infiniband/verbs.h> of the system; that of Apple's SDK could not be compared here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace standfast::verbs {

enum class NodeType : std::int32_t { kUnknown = -1, kChannelAdapter = 1, kRnic = 4 };

// Apple names the transport of its Thunderbolt devices 100.
enum class Transport : std::int32_t {
  kUnknown = -1,
  kInfiniBand = 0,
  kIwarp = 1,
  kThunderbolt = 100
};

enum class PortState : std::int32_t { kNop, kDown, kInit, kArmed, kActive, kActiveDefer };

enum class LinkLayer : std::uint8_t { kUnspecified, kInfiniBand, kEthernet };

enum class Mtu : std::int32_t { k256 = 1, k512, k1024, k2048, k4096 };

enum class QpType : std::int32_t { kRc = 2, kUc = 3, kUd = 4 };

enum class QpState : std::int32_t { kReset, kInit, kRtr, kRts, kSqd, kSqe, kErr, kUnknown };

enum class SendOpcode : std::int32_t {
  kRdmaWrite = 0,
  kRdmaWriteWithImm = 1,
  kSend = 2,
  kSendWithImm = 3,
  kRdmaRead = 4,
};

enum class WcStatus : std::int32_t {
  kSuccess = 0,
  kLocalLength = 1,
  kLocalQpOperation = 2,
  kLocalProtection = 4,
  kFlushed = 5,
  kBadResponse = 7,
  kLocalAccess = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccess = 10,
  kRemoteOperation = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kFatal = 19,
  kResponseTimeout = 20,
  kGeneral = 21,
};

// A completion with status != kSuccess says only wr_id, status, vendor_err and qp_num.
enum class WcOpcode : std::int32_t { kSend = 0, kRdmaWrite = 1, kRdmaRead = 2, kReceive = 1 << 7 };

enum SendFlags : std::uint32_t {
  kSendFence = 1u << 0,
  kSendSignaled = 1u << 1,
  kSendSolicited = 1u << 2,
  kSendInline = 1u << 3,
};

enum AccessFlags : std::int32_t {
  kAccessLocalWrite = 1 << 0,
  kAccessRemoteWrite = 1 << 1,
  kAccessRemoteRead = 1 << 2,
};

// Which fields of QpAttr a call of ibv_modify_qp sets.
enum QpAttrMask : std::int32_t {
  kQpState = 1 << 0,
  kQpCurState = 1 << 1,
  kQpAccessFlags = 1 << 3,
  kQpPkeyIndex = 1 << 4,
  kQpPort = 1 << 5,
  kQpQkey = 1 << 6,
  kQpAv = 1 << 7,
  kQpPathMtu = 1 << 8,
  kQpTimeout = 1 << 9,
  kQpRetryCnt = 1 << 10,
  kQpRnrRetry = 1 << 11,
  kQpRqPsn = 1 << 12,
  kQpMaxRdAtomic = 1 << 13,
  kQpMinRnrTimer = 1 << 15,
  kQpSqPsn = 1 << 16,
  kQpMaxDestRdAtomic = 1 << 17,
  kQpCap = 1 << 19,
  kQpDestQpn = 1 << 20,
};

inline constexpr std::size_t kNameBytes = 64;
inline constexpr std::size_t kPathBytes = 256;

struct Device {
  void* ops[2];
  NodeType node_type;
  Transport transport_type;
  char name[kNameBytes];  // "rdma_en5"
  char dev_name[kNameBytes];
  char dev_path[kPathBytes];
  char ibdev_path[kPathBytes];
};

// In network byte order. IPv4-mapped (::ffff:a.b.c.d), link-local (fe80::...) or all zero (no
// entry).
union Gid {
  std::uint8_t raw[16];
  struct {
    std::uint64_t subnet_prefix;
    std::uint64_t interface_id;
  } global;
};

struct DeviceAttr {
  char fw_ver[64];
  std::uint64_t node_guid;
  std::uint64_t sys_image_guid;
  std::uint64_t max_mr_size;
  std::uint64_t page_size_cap;
  std::uint32_t vendor_id;
  std::uint32_t vendor_part_id;
  std::uint32_t hw_ver;
  std::int32_t max_qp;
  std::int32_t max_qp_wr;
  std::uint32_t device_cap_flags;
  std::int32_t max_sge;
  std::int32_t max_sge_rd;
  std::int32_t max_cq;
  std::int32_t max_cqe;
  std::int32_t max_mr;
  std::int32_t max_pd;
  std::int32_t max_qp_rd_atom;
  std::int32_t max_ee_rd_atom;
  std::int32_t max_res_rd_atom;
  std::int32_t max_qp_init_rd_atom;
  std::int32_t max_ee_init_rd_atom;
  std::int32_t atomic_cap;
  std::int32_t max_ee;
  std::int32_t max_rdd;
  std::int32_t max_mw;
  std::int32_t max_raw_ipv6_qp;
  std::int32_t max_raw_ethy_qp;
  std::int32_t max_mcast_grp;
  std::int32_t max_mcast_qp_attach;
  std::int32_t max_total_mcast_qp_attach;
  std::int32_t max_ah;
  std::int32_t max_fmr;
  std::int32_t max_map_per_fmr;
  std::int32_t max_srq;
  std::int32_t max_srq_wr;
  std::int32_t max_srq_sge;
  std::uint16_t max_pkeys;
  std::uint8_t local_ca_ack_delay;
  std::uint8_t phys_port_cnt;
};

// The exported ibv_query_port of older libraries fills a shorter form, without port_cap_flags2, and
// leaves the rest alone: zero the whole before the call.
struct PortAttr {
  PortState state;
  Mtu max_mtu;
  Mtu active_mtu;
  std::int32_t gid_tbl_len;
  std::uint32_t port_cap_flags;
  std::uint32_t max_msg_sz;
  std::uint32_t bad_pkey_cntr;
  std::uint32_t qkey_viol_cntr;
  std::uint16_t pkey_tbl_len;
  std::uint16_t lid;
  std::uint16_t sm_lid;
  std::uint8_t lmc;
  std::uint8_t max_vl_num;
  std::uint8_t sm_sl;
  std::uint8_t subnet_timeout;
  std::uint8_t init_type_reply;
  std::uint8_t active_width;
  std::uint8_t active_speed;
  std::uint8_t phys_state;
  LinkLayer link_layer;
  std::uint8_t flags;
  std::uint16_t port_cap_flags2;
};

struct QpCap {
  std::uint32_t max_send_wr;
  std::uint32_t max_recv_wr;
  std::uint32_t max_send_sge;
  std::uint32_t max_recv_sge;
  std::uint32_t max_inline_data;
};

struct GlobalRoute {
  Gid dgid;
  std::uint32_t flow_label;
  std::uint8_t sgid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
};

struct AhAttr {
  GlobalRoute grh;
  std::uint16_t dlid;
  std::uint8_t sl;
  std::uint8_t src_path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port_num;
};

struct QpAttr {
  QpState qp_state;
  QpState cur_qp_state;
  Mtu path_mtu;
  std::int32_t path_mig_state;
  std::uint32_t qkey;
  std::uint32_t rq_psn;
  std::uint32_t sq_psn;
  std::uint32_t dest_qp_num;
  std::uint32_t qp_access_flags;
  QpCap cap;
  AhAttr ah_attr;
  AhAttr alt_ah_attr;
  std::uint16_t pkey_index;
  std::uint16_t alt_pkey_index;
  std::uint8_t en_sqd_async_notify;
  std::uint8_t sq_draining;
  std::uint8_t max_rd_atomic;
  std::uint8_t max_dest_rd_atomic;
  std::uint8_t min_rnr_timer;
  std::uint8_t port_num;
  std::uint8_t timeout;
  std::uint8_t retry_cnt;
  std::uint8_t rnr_retry;
  std::uint8_t alt_port_num;
  std::uint8_t alt_timeout;
  std::uint32_t rate_limit;
};

struct Context;
struct CompChannel;

struct Pd {
  Context* context;
  std::uint32_t handle;
};

struct Mr {
  Context* context;
  Pd* pd;
  void* addr;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

struct Cq {
  Context* context;
  CompChannel* channel;
  void* cq_context;
  std::uint32_t handle;
  std::int32_t cqe;
  // Here pthread members follow.
};

struct QpInitAttr {
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  QpCap cap;
  QpType qp_type;
  std::int32_t sq_sig_all;
};

struct Qp {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* recv_cq;
  void* srq;
  std::uint32_t handle;
  std::uint32_t qp_num;
  QpState state;
  QpType qp_type;
  // Here pthread members follow.
};

struct Sge {
  std::uint64_t addr;
  std::uint32_t length;
  std::uint32_t lkey;
};

struct SendWr {
  std::uint64_t wr_id;
  SendWr* next;
  Sge* sg_list;
  std::int32_t num_sge;
  SendOpcode opcode;
  std::uint32_t send_flags;
  std::uint32_t imm_data;
  std::uint64_t other_opcodes[11];  // what only RDMA, atomics, UD, ... use
};

struct RecvWr {
  std::uint64_t wr_id;
  RecvWr* next;
  Sge* sg_list;
  std::int32_t num_sge;
};

struct Wc {
  std::uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;
  std::uint32_t vendor_err;
  std::uint32_t byte_len;
  std::uint32_t imm_data;
  std::uint32_t qp_num;
  std::uint32_t src_qp;
  std::uint32_t wc_flags;
  std::uint16_t pkey_index;
  std::uint16_t slid;
  std::uint8_t sl;
  std::uint8_t dlid_path_bits;
};

struct CompChannel {
  Context* context;
  std::int32_t fd;
  std::int32_t refcnt;
};

// What programs call through the context instead of by name. Both posts return 0 or an errno, and
// name the first request that was not taken; poll_cq returns how many completions it wrote, or -1.
struct ContextOps {
  void* compat_0_to_10[11];
  int (*poll_cq)(Cq* cq, int entries_max, Wc* completions);
  int (*req_notify_cq)(Cq* cq, int solicited_only);
  void* compat_13_to_24[12];
  int (*post_send)(Qp* qp, SendWr* request, SendWr** bad_request);
  int (*post_recv)(Qp* qp, RecvWr* request, RecvWr** bad_request);
  void* compat_27_to_31[5];
};

struct Context {
  Device* device;
  ContextOps ops;
  std::int32_t cmd_fd;
  std::int32_t async_fd;
  std::int32_t num_comp_vectors;
  // Here a pthread member follows.
};

// What is loaded by name, as the C library declares it: `Device** ibv_get_device_list(int*)` and so
// on.
static_assert(offsetof(Context, ops) == 8);
static_assert(offsetof(Context, ops.poll_cq) == 96);
static_assert(offsetof(Context, ops.post_send) == 208);
static_assert(offsetof(Context, ops.post_recv) == 216);
static_assert(offsetof(Qp, qp_num) == 52);
static_assert(offsetof(Mr, lkey) == 36);
static_assert(sizeof(SendWr) == 128 && sizeof(RecvWr) == 32 && sizeof(Sge) == 16);
static_assert(sizeof(Wc) == 48 && offsetof(Wc, status) == 8 && offsetof(Wc, opcode) == 12);
static_assert(sizeof(PortAttr) == 52 && sizeof(QpInitAttr) == 64 && sizeof(DeviceAttr) == 232);
static_assert(sizeof(QpAttr) == 144 && offsetof(QpAttr, ah_attr) == 56);
static_assert(offsetof(QpAttr, port_num) == 129 && sizeof(Gid) == 16);

}  // namespace standfast::verbs
