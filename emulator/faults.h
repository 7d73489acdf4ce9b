// Faults that a test asks for, and which events they befall. The control side writes rules into the
// shared state; the library asks here at each event.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "emulator/state.h"
#include "emulator/store.h"

namespace standfast::emulator {

// Calls of a program, and steps inside of them, at which it can be failed or ended.
enum class Call : std::uint32_t {
  kGetDeviceList,
  kOpenDevice,
  kCloseDevice,
  kQueryDevice,
  kQueryPort,
  kQueryGid,
  kAllocPd,
  kDeallocPd,
  kRegMr,
  kDeregMr,
  kCreateCq,
  kDestroyCq,
  kCreateQp,
  kModifyInit,
  kModifyRtr,
  kModifyRts,
  kModifyOther,
  kQueryQp,
  kDestroyQp,
  kPostSend,
  kPostRecv,
  kPollCq,
  kWritePiece,  // a piece is in the arena, and not yet announced
  kReadPiece,   // a piece is in the receiver's memory, and not yet acknowledged
  kEnd
};

enum class FaultKind : std::uint32_t {
  // Befall messages, in the order in which they are posted at a port.
  kLose,
  kDuplicate,
  kCorrupt,   // parameter: which byte
  kTruncate,  // parameter: bytes that are left
  kDelay,     // parameter: nanoseconds
  kReorder,   // it goes after the next one on its queue pair
  // Befall completions at a port; parameter: the status.
  kFailSend,
  kFailReceive,
  // Befall calls.
  kFailCall,  // parameter: the number
  kSlowCall,  // parameter: nanoseconds
  kKill,
  kStop,
  kSegv,
  kEnd
};

std::string_view call_name(Call call);
std::string_view fault_name(FaultKind kind);
std::optional<Call> find_call(std::string_view name);
std::optional<FaultKind> find_fault(std::string_view name);
inline bool is_call_fault(FaultKind kind) { return kind >= FaultKind::kFailCall; }

// Whether a rule befalls its n-th event. Pure: the same for the same seed.
bool befalls(std::uint64_t first, std::uint64_t count, std::uint64_t chance, std::uint64_t seed,
             std::uint64_t n);

// What is to befall a message.
struct Fate {
  bool lose = false;
  bool duplicate = false;
  bool reorder = false;
  std::optional<std::int64_t> corrupt_byte;
  std::optional<std::int64_t> bytes_left;
  std::int64_t delay_ns = 0;
};

// The slow halves; without rules nobody comes here.
Fate fate_of_message(const Store& store, std::size_t port);
// The status that a completion gets instead of success; 0: none.
int status_of_completion(const Store& store, std::size_t port, bool is_receive);
// May not return. Returns the number to fail with; 0: go on. port -1: a call without a device.
int befall_call(const Store& store, const char* host, int port, Call call);

inline bool has_rules(const Store& store) {
  return store.header().rules_active.load(std::memory_order_acquire) != 0;
}

// At the beginning of each call, and at steps inside.
inline int hook(const Store& store, const char* host, int port, Call call) {
  return has_rules(store) ? befall_call(store, host, port, call) : 0;
}

}  // namespace standfast::emulator
