// Names of numbers, as programs print them.
#include "core/fabric/verbs/abi.h"
#include "emulator/exports.h"

namespace standfast::emulator {

VERBS_API const char* ibv_wc_status_str(verbs::WcStatus status) {
  using verbs::WcStatus;
  switch (status) {
    case WcStatus::kSuccess: return "success";
    case WcStatus::kLocalLength: return "local length error";
    case WcStatus::kLocalQpOperation: return "local QP operation error";
    case WcStatus::kLocalProtection: return "local protection error";
    case WcStatus::kFlushed: return "Work Request Flushed Error";
    case WcStatus::kBadResponse: return "bad response error";
    case WcStatus::kLocalAccess: return "local access error";
    case WcStatus::kRemoteInvalidRequest: return "remote invalid request error";
    case WcStatus::kRemoteAccess: return "remote access error";
    case WcStatus::kRemoteOperation: return "remote operation error";
    case WcStatus::kRetryExceeded: return "transport retry counter exceeded";
    case WcStatus::kRnrRetryExceeded: return "RNR retry counter exceeded";
    case WcStatus::kFatal: return "fatal error";
    case WcStatus::kResponseTimeout: return "response timeout error";
    case WcStatus::kGeneral: return "general error";
  }
  return "unknown";
}

VERBS_API const char* ibv_port_state_str(verbs::PortState state) {
  using verbs::PortState;
  switch (state) {
    case PortState::kNop: return "no state change (NOP)";
    case PortState::kDown: return "down";
    case PortState::kInit: return "init";
    case PortState::kArmed: return "armed";
    case PortState::kActive: return "active";
    case PortState::kActiveDefer: return "active defer";
  }
  return "invalid state";
}

VERBS_API const char* ibv_node_type_str(verbs::NodeType type) {
  return type == verbs::NodeType::kChannelAdapter ? "InfiniBand channel adapter" : "unknown";
}

}  // namespace standfast::emulator
