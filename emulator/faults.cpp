#include "emulator/faults.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "emulator/clock.h"

namespace standfast::emulator {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Call::kEnd)> kCallNames = {
    "get_device_list", "open_device", "close_device", "query_device", "query_port",   "query_gid",
    "alloc_pd",        "dealloc_pd",  "reg_mr",       "dereg_mr",     "create_cq",    "destroy_cq",
    "create_qp",       "modify_init", "modify_rtr",   "modify_rts",   "modify_other", "query_qp",
    "destroy_qp",      "post_send",   "post_recv",    "poll_cq",      "write_piece",  "read_piece"};

constexpr std::array<std::string_view, static_cast<std::size_t>(FaultKind::kEnd)> kFaultNames = {
    "lose",         "duplicate", "corrupt", "truncate", "delay", "reorder", "fail-send",
    "fail-receive", "fail",      "slow",    "kill",     "stop",  "segv"};

std::uint64_t mixed(std::uint64_t value) {
  // SplitMix64: neighbours give unrelated numbers.
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

bool is_at(const Store& store, const Rule& rule, const char* host, int port) {
  if (rule.port >= 0) return rule.port == port;
  if (rule.host[0] == 0) return true;
  const char* here = port >= 0 ? store.port(static_cast<std::size_t>(port)).host : host;
  return here != nullptr && std::strcmp(rule.host, here) == 0;
}

// Counts the event, and tells whether it is one that the rule befalls.
bool strikes(Rule& rule) {
  const std::uint64_t n = rule.seen.fetch_add(1, std::memory_order_relaxed);
  if (!befalls(rule.first, rule.count, rule.chance, rule.seed, n)) return false;
  rule.applied.fetch_add(1, std::memory_order_relaxed);
  return true;
}

template <typename Function>
void each_active(const Store& store, Function function) {
  for (Rule& rule : store.header().rules) {
    if (rule.state.load(std::memory_order_acquire) ==
        static_cast<std::uint32_t>(RuleState::kActive)) {
      function(rule, static_cast<FaultKind>(rule.kind));
    }
  }
}

// A program's own handlers are its own; these ends are those of hardware that does not ask.
void end_by(int signal_number) {
  if (signal_number == SIGSEGV) signal(SIGSEGV, SIG_DFL);
  kill(getpid(), signal_number);
  // The signal may reach another thread first: this one goes no further.
  while (signal_number != SIGSTOP) sleep_ns(1'000'000);
  // Not before the stop has taken hold: it is at most a moment until all threads stand.
  sleep_ns(1'000'000);
}

}  // namespace

std::string_view call_name(Call call) { return kCallNames[static_cast<std::size_t>(call)]; }

std::string_view fault_name(FaultKind kind) { return kFaultNames[static_cast<std::size_t>(kind)]; }

std::optional<Call> find_call(std::string_view name) {
  for (std::size_t i = 0; i < kCallNames.size(); ++i) {
    if (kCallNames[i] == name) return static_cast<Call>(i);
  }
  return std::nullopt;
}

std::optional<FaultKind> find_fault(std::string_view name) {
  for (std::size_t i = 0; i < kFaultNames.size(); ++i) {
    if (kFaultNames[i] == name) return static_cast<FaultKind>(i);
  }
  return std::nullopt;
}

bool befalls(std::uint64_t first, std::uint64_t count, std::uint64_t chance, std::uint64_t seed,
             std::uint64_t n) {
  if (n < first || n - first >= count) return false;
  return (mixed(seed ^ mixed(n)) >> 32) < chance;
}

Fate fate_of_message(const Store& store, std::size_t port) {
  Fate fate;
  each_active(store, [&](Rule& rule, FaultKind kind) {
    if (kind > FaultKind::kReorder) return;
    if (!is_at(store, rule, nullptr, static_cast<int>(port)) || !strikes(rule)) return;
    switch (kind) {
      case FaultKind::kLose: fate.lose = true; break;
      case FaultKind::kDuplicate: fate.duplicate = true; break;
      case FaultKind::kCorrupt: fate.corrupt_byte = rule.parameter; break;
      case FaultKind::kTruncate: fate.bytes_left = rule.parameter; break;
      case FaultKind::kDelay: fate.delay_ns += rule.parameter; break;
      default: fate.reorder = true; break;
    }
  });
  return fate;
}

int status_of_completion(const Store& store, std::size_t port, bool is_receive) {
  const FaultKind wanted = is_receive ? FaultKind::kFailReceive : FaultKind::kFailSend;
  int status = 0;
  each_active(store, [&](Rule& rule, FaultKind kind) {
    if (kind != wanted || !is_at(store, rule, nullptr, static_cast<int>(port))) return;
    if (strikes(rule)) status = static_cast<int>(rule.parameter);
  });
  return status;
}

int befall_call(const Store& store, const char* host, int port, Call call) {
  int number = 0;
  each_active(store, [&](Rule& rule, FaultKind kind) {
    if (!is_call_fault(kind) || static_cast<Call>(rule.call) != call) return;
    if (!is_at(store, rule, host, port) || !strikes(rule)) return;
    switch (kind) {
      case FaultKind::kSlowCall: sleep_ns(rule.parameter); break;
      case FaultKind::kKill: end_by(SIGKILL); break;
      case FaultKind::kStop: end_by(SIGSTOP); break;
      case FaultKind::kSegv: end_by(SIGSEGV); break;
      default: number = static_cast<int>(rule.parameter); break;
    }
  });
  return number;
}

}  // namespace standfast::emulator
