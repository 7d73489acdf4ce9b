// Compares core/fabric/verbs/abi.h with the system's <infiniband/verbs.h>, where there is one: each
// layout and number at compile time, so that a difference does not build.
#include <doctest/doctest.h>

#include <string_view>

#include "core/fabric/verbs/abi.h"

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

namespace standfast {
namespace {

#define SAME_SIZE(ours, theirs) static_assert(sizeof(verbs::ours) == sizeof(theirs))
#define SAME_PLACE(ours, theirs, field)                                    \
  static_assert(offsetof(verbs::ours, field) == offsetof(theirs, field) && \
                sizeof(verbs::ours::field) == sizeof(theirs::field))
#define SAME_NUMBER(ours, theirs) static_assert(static_cast<long>(verbs::ours) == theirs)

SAME_SIZE(Device, ibv_device);
SAME_PLACE(Device, ibv_device, node_type);
SAME_PLACE(Device, ibv_device, transport_type);
SAME_PLACE(Device, ibv_device, name);
SAME_PLACE(Device, ibv_device, dev_name);
SAME_PLACE(Device, ibv_device, ibdev_path);
SAME_SIZE(Gid, ibv_gid);
SAME_SIZE(DeviceAttr, ibv_device_attr);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_mr_size);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_qp);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_qp_wr);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_sge);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_cqe);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_mr);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_pd);
SAME_PLACE(DeviceAttr, ibv_device_attr, atomic_cap);
SAME_PLACE(DeviceAttr, ibv_device_attr, max_pkeys);
SAME_PLACE(DeviceAttr, ibv_device_attr, phys_port_cnt);
SAME_SIZE(PortAttr, ibv_port_attr);
SAME_PLACE(PortAttr, ibv_port_attr, state);
SAME_PLACE(PortAttr, ibv_port_attr, active_mtu);
SAME_PLACE(PortAttr, ibv_port_attr, gid_tbl_len);
SAME_PLACE(PortAttr, ibv_port_attr, max_msg_sz);
SAME_PLACE(PortAttr, ibv_port_attr, lid);
SAME_PLACE(PortAttr, ibv_port_attr, active_width);
SAME_PLACE(PortAttr, ibv_port_attr, phys_state);
SAME_PLACE(PortAttr, ibv_port_attr, link_layer);
SAME_PLACE(PortAttr, ibv_port_attr, port_cap_flags2);
SAME_SIZE(QpCap, ibv_qp_cap);
SAME_SIZE(GlobalRoute, ibv_global_route);
SAME_PLACE(GlobalRoute, ibv_global_route, sgid_index);
SAME_PLACE(GlobalRoute, ibv_global_route, hop_limit);
SAME_SIZE(AhAttr, ibv_ah_attr);
SAME_PLACE(AhAttr, ibv_ah_attr, dlid);
SAME_PLACE(AhAttr, ibv_ah_attr, is_global);
SAME_PLACE(AhAttr, ibv_ah_attr, port_num);
SAME_SIZE(QpAttr, ibv_qp_attr);
SAME_PLACE(QpAttr, ibv_qp_attr, path_mtu);
SAME_PLACE(QpAttr, ibv_qp_attr, rq_psn);
SAME_PLACE(QpAttr, ibv_qp_attr, sq_psn);
SAME_PLACE(QpAttr, ibv_qp_attr, dest_qp_num);
SAME_PLACE(QpAttr, ibv_qp_attr, cap);
SAME_PLACE(QpAttr, ibv_qp_attr, ah_attr);
SAME_PLACE(QpAttr, ibv_qp_attr, pkey_index);
SAME_PLACE(QpAttr, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(QpAttr, ibv_qp_attr, max_dest_rd_atomic);
SAME_PLACE(QpAttr, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(QpAttr, ibv_qp_attr, port_num);
SAME_PLACE(QpAttr, ibv_qp_attr, timeout);
SAME_PLACE(QpAttr, ibv_qp_attr, retry_cnt);
SAME_PLACE(QpAttr, ibv_qp_attr, rnr_retry);
SAME_SIZE(QpInitAttr, ibv_qp_init_attr);
SAME_PLACE(QpInitAttr, ibv_qp_init_attr, cap);
SAME_PLACE(QpInitAttr, ibv_qp_init_attr, qp_type);
SAME_PLACE(QpInitAttr, ibv_qp_init_attr, sq_sig_all);
SAME_SIZE(Pd, ibv_pd);
SAME_SIZE(Mr, ibv_mr);
SAME_PLACE(Mr, ibv_mr, addr);
SAME_PLACE(Mr, ibv_mr, lkey);
SAME_PLACE(Mr, ibv_mr, rkey);
SAME_PLACE(Cq, ibv_cq, channel);
SAME_PLACE(Cq, ibv_cq, cq_context);
SAME_PLACE(Cq, ibv_cq, cqe);
SAME_PLACE(Qp, ibv_qp, pd);
SAME_PLACE(Qp, ibv_qp, send_cq);
SAME_PLACE(Qp, ibv_qp, recv_cq);
SAME_PLACE(Qp, ibv_qp, qp_num);
SAME_PLACE(Qp, ibv_qp, state);
SAME_PLACE(Qp, ibv_qp, qp_type);
SAME_SIZE(Sge, ibv_sge);
SAME_PLACE(Sge, ibv_sge, addr);
SAME_PLACE(Sge, ibv_sge, length);
SAME_PLACE(Sge, ibv_sge, lkey);
SAME_SIZE(SendWr, ibv_send_wr);
SAME_PLACE(SendWr, ibv_send_wr, next);
SAME_PLACE(SendWr, ibv_send_wr, sg_list);
SAME_PLACE(SendWr, ibv_send_wr, num_sge);
SAME_PLACE(SendWr, ibv_send_wr, opcode);
SAME_PLACE(SendWr, ibv_send_wr, send_flags);
SAME_PLACE(SendWr, ibv_send_wr, imm_data);
SAME_SIZE(RecvWr, ibv_recv_wr);
SAME_PLACE(RecvWr, ibv_recv_wr, next);
SAME_PLACE(RecvWr, ibv_recv_wr, sg_list);
SAME_PLACE(RecvWr, ibv_recv_wr, num_sge);
SAME_SIZE(Wc, ibv_wc);
SAME_PLACE(Wc, ibv_wc, status);
SAME_PLACE(Wc, ibv_wc, opcode);
SAME_PLACE(Wc, ibv_wc, vendor_err);
SAME_PLACE(Wc, ibv_wc, byte_len);
SAME_PLACE(Wc, ibv_wc, imm_data);
SAME_PLACE(Wc, ibv_wc, qp_num);
SAME_PLACE(Wc, ibv_wc, src_qp);
SAME_PLACE(Wc, ibv_wc, wc_flags);
SAME_SIZE(CompChannel, ibv_comp_channel);
SAME_SIZE(ContextOps, ibv_context_ops);
SAME_PLACE(ContextOps, ibv_context_ops, poll_cq);
SAME_PLACE(ContextOps, ibv_context_ops, req_notify_cq);
SAME_PLACE(ContextOps, ibv_context_ops, post_send);
SAME_PLACE(ContextOps, ibv_context_ops, post_recv);
SAME_PLACE(Context, ibv_context, ops);
SAME_PLACE(Context, ibv_context, cmd_fd);
SAME_PLACE(Context, ibv_context, async_fd);
SAME_PLACE(Context, ibv_context, num_comp_vectors);

SAME_NUMBER(NodeType::kChannelAdapter, IBV_NODE_CA);
SAME_NUMBER(Transport::kInfiniBand, IBV_TRANSPORT_IB);
SAME_NUMBER(PortState::kDown, IBV_PORT_DOWN);
SAME_NUMBER(PortState::kActive, IBV_PORT_ACTIVE);
SAME_NUMBER(LinkLayer::kInfiniBand, IBV_LINK_LAYER_INFINIBAND);
SAME_NUMBER(LinkLayer::kEthernet, IBV_LINK_LAYER_ETHERNET);
SAME_NUMBER(Mtu::k1024, IBV_MTU_1024);
SAME_NUMBER(Mtu::k4096, IBV_MTU_4096);
SAME_NUMBER(QpType::kRc, IBV_QPT_RC);
SAME_NUMBER(QpType::kUc, IBV_QPT_UC);
SAME_NUMBER(QpType::kUd, IBV_QPT_UD);
SAME_NUMBER(QpState::kInit, IBV_QPS_INIT);
SAME_NUMBER(QpState::kRtr, IBV_QPS_RTR);
SAME_NUMBER(QpState::kRts, IBV_QPS_RTS);
SAME_NUMBER(QpState::kErr, IBV_QPS_ERR);
SAME_NUMBER(SendOpcode::kSend, IBV_WR_SEND);
SAME_NUMBER(SendOpcode::kRdmaRead, IBV_WR_RDMA_READ);
SAME_NUMBER(WcStatus::kLocalLength, IBV_WC_LOC_LEN_ERR);
SAME_NUMBER(WcStatus::kLocalQpOperation, IBV_WC_LOC_QP_OP_ERR);
SAME_NUMBER(WcStatus::kLocalProtection, IBV_WC_LOC_PROT_ERR);
SAME_NUMBER(WcStatus::kFlushed, IBV_WC_WR_FLUSH_ERR);
SAME_NUMBER(WcStatus::kBadResponse, IBV_WC_BAD_RESP_ERR);
SAME_NUMBER(WcStatus::kLocalAccess, IBV_WC_LOC_ACCESS_ERR);
SAME_NUMBER(WcStatus::kRemoteInvalidRequest, IBV_WC_REM_INV_REQ_ERR);
SAME_NUMBER(WcStatus::kRemoteAccess, IBV_WC_REM_ACCESS_ERR);
SAME_NUMBER(WcStatus::kRemoteOperation, IBV_WC_REM_OP_ERR);
SAME_NUMBER(WcStatus::kRetryExceeded, IBV_WC_RETRY_EXC_ERR);
SAME_NUMBER(WcStatus::kRnrRetryExceeded, IBV_WC_RNR_RETRY_EXC_ERR);
SAME_NUMBER(WcStatus::kFatal, IBV_WC_FATAL_ERR);
SAME_NUMBER(WcStatus::kResponseTimeout, IBV_WC_RESP_TIMEOUT_ERR);
SAME_NUMBER(WcStatus::kGeneral, IBV_WC_GENERAL_ERR);
SAME_NUMBER(WcOpcode::kSend, IBV_WC_SEND);
SAME_NUMBER(WcOpcode::kReceive, IBV_WC_RECV);
SAME_NUMBER(kSendSignaled, IBV_SEND_SIGNALED);
SAME_NUMBER(kSendInline, IBV_SEND_INLINE);
SAME_NUMBER(kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE);
SAME_NUMBER(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
SAME_NUMBER(kAccessRemoteRead, IBV_ACCESS_REMOTE_READ);
SAME_NUMBER(kQpState, IBV_QP_STATE);
SAME_NUMBER(kQpAccessFlags, IBV_QP_ACCESS_FLAGS);
SAME_NUMBER(kQpPkeyIndex, IBV_QP_PKEY_INDEX);
SAME_NUMBER(kQpPort, IBV_QP_PORT);
SAME_NUMBER(kQpAv, IBV_QP_AV);
SAME_NUMBER(kQpPathMtu, IBV_QP_PATH_MTU);
SAME_NUMBER(kQpTimeout, IBV_QP_TIMEOUT);
SAME_NUMBER(kQpRetryCnt, IBV_QP_RETRY_CNT);
SAME_NUMBER(kQpRnrRetry, IBV_QP_RNR_RETRY);
SAME_NUMBER(kQpRqPsn, IBV_QP_RQ_PSN);
SAME_NUMBER(kQpMaxRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC);
SAME_NUMBER(kQpMinRnrTimer, IBV_QP_MIN_RNR_TIMER);
SAME_NUMBER(kQpSqPsn, IBV_QP_SQ_PSN);
SAME_NUMBER(kQpMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_NUMBER(kQpCap, IBV_QP_CAP);
SAME_NUMBER(kQpDestQpn, IBV_QP_DEST_QPN);

// Numbers of a live object, so that the macros above are seen to look at the right structs.
TEST_CASE("a work completion of the system's header reads the same through ours") {
  ibv_wc theirs{};
  theirs.wr_id = 7;
  theirs.status = IBV_WC_WR_FLUSH_ERR;
  theirs.byte_len = 4096;
  theirs.qp_num = 258;
  verbs::Wc ours;
  static_assert(sizeof(ours) == sizeof(theirs));
  __builtin_memcpy(&ours, &theirs, sizeof(ours));
  CHECK(ours.wr_id == 7);
  CHECK(ours.status == verbs::WcStatus::kFlushed);
  CHECK(ours.byte_len == 4096);
  CHECK(ours.qp_num == 258);
}

}  // namespace
}  // namespace standfast
#endif
