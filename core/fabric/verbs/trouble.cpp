#include "core/fabric/verbs/trouble.h"

#include <cerrno>
#include <cstdlib>

#include "core/base/error.h"

namespace standfast::verbs {
namespace {

constexpr int kDarwinTimedOut = 60;
constexpr int kDarwinNotSupported = 102;

std::string failed(const std::string& what, const char* call, int error) {
  if (error == 0) return what + ": " + call + " gave no reason";
  return what + ": " + call + " failed with " + number_text(error);
}

const char* meaning(int error) {
  switch (error) {
    case kDarwinTimedOut: return "ETIMEDOUT on macOS";
    case kDarwinNotSupported: return "EOPNOTSUPP on macOS";
    default: return nullptr;
  }
}

}  // namespace

const char* port_state_name(PortState state) {
  switch (state) {
    case PortState::kNop: return "in no state";
    case PortState::kDown: return "DOWN";
    case PortState::kInit: return "INIT";
    case PortState::kArmed: return "ARMED";
    case PortState::kActive: return "ACTIVE";
    case PortState::kActiveDefer: return "ACTIVE_DEFER";
  }
  return "in an unknown state";
}

std::string number_text(int error) {
  const int number = std::abs(error);
  if (const char* text = meaning(number)) return std::to_string(number) + " (" + text + ")";
  const std::string text = errno_text(number);
  return std::to_string(number) + " (" + text.substr(0, text.find(" (")) + ")";
}

std::string wc_status_text(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess: return "success";
    case WcStatus::kLocalLength: return "a length that does not fit (LOC_LEN_ERR)";
    case WcStatus::kLocalProtection: return "memory that is not registered (LOC_PROT_ERR)";
    case WcStatus::kFlushed: return "flushed: the queue pair had failed before (WR_FLUSH_ERR)";
    case WcStatus::kRetryExceeded: return "the peer's device does not answer (RETRY_EXC_ERR)";
    case WcStatus::kRnrRetryExceeded: return "the peer posted no receive (RNR_RETRY_EXC_ERR)";
    case WcStatus::kRemoteOperation: return "the peer's queue pair failed (REM_OP_ERR)";
    default: return "status " + std::to_string(static_cast<int>(status));
  }
}

Trouble no_domain(const std::string& device, PortState state, int error) {
  const std::string what = "couldn't allocate a protection domain on " + device;
  if (state == PortState::kActive) {
    return {"no_protection_domain", failed(what, "ibv_alloc_pd", error),
            "other processes may hold all of them: end those that use RDMA", device, error};
  }
  return {
      "port_down",
      what + ": port is " + port_state_name(state) + " (cable out, or RDMA off at the other end)",
      "check the cable, and `rdma_ctl status` on both Macs", device, error};
}

Trouble no_queue_pair(const std::string& device, QpType type, int error) {
  const std::string kind = type == QpType::kRc ? "an RC" : "a UC";
  const std::string what = "couldn't create " + kind + " queue pair on " + device;
  const std::string text = failed(what, "ibv_create_qp", error);
  switch (std::abs(error)) {
    case EBUSY:
      return {"queue_pairs_used_up", text + ": all queue pairs of the device are in use",
              "end other processes that use RDMA, or groups that are not needed any more; trying "
              "again does not help",
              device, error};
    case kDarwinNotSupported:
      return {"queue_pair_type", text + ": the device does not offer this type", "", device, error};
    default: return {"no_queue_pair", text, "", device, error};
  }
}

Trouble no_transition(const Target& target, const char* state, int error) {
  const std::string text = std::string(state) + " on " + target.device + " towards " + target.peer +
                           ": " + number_text(error);
  switch (std::abs(error)) {
    case EINVAL:
      return {"address_refused",
              text + ", the address of one of the two ends is not, or no longer, in its GID table",
              "switch the Thunderbolt Bridge off, and see `standfast devices` for the addresses",
              target.device, error};
    case kDarwinTimedOut:
      return {"address_elsewhere", text + ", that address is not at the other end of this cable",
              "compare the device file with the cables, or swap two of them", target.device, error};
    case EBUSY:
      return {"queue_pair_busy", text + ", an earlier process still holds the queue pair",
              "wait until the ranks of the previous run have ended", target.device, error};
    default: return {"queue_pair_state", text, "", target.device, error};
  }
}

Trouble refused(const std::string& device, const char* what, const char* call, int error) {
  return {"call_failed", failed("couldn't " + std::string(what) + " on " + device, call, error), "",
          device, error};
}

}  // namespace standfast::verbs
