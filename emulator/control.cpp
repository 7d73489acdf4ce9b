#include "emulator/control.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "emulator/exports.h"
#include "emulator/faults.h"
#include "emulator/gid.h"
#include "emulator/objects.h"
#include "emulator/owner.h"

namespace standfast::emulator {
namespace {

using Words = std::vector<std::string>;

[[noreturn]] void refuse_command(const std::string& why) { throw std::invalid_argument(why); }

std::size_t need_port(const Store& store, const std::string& name) {
  const int port = store.find_port(name);
  if (port < 0) refuse_command("'" + name + "': the fabric has no such port");
  return static_cast<std::size_t>(port);
}

const std::string& word(const Words& words, std::size_t index) {
  if (index >= words.size()) refuse_command("'" + words[0] + "': too few words");
  return words[index];
}

std::int64_t signed_number(std::string_view text) {
  const bool is_negative = !text.empty() && text[0] == '-';
  const auto number = static_cast<std::int64_t>(parse_number(text.substr(is_negative ? 1 : 0)));
  return is_negative ? -number : number;
}

// cable NAME up|down|errors|segv|wedged|renew
std::string set_cable(const Store& store, const Words& words) {
  const int index = store.find_cable(word(words, 1));
  if (index < 0) refuse_command("'" + words[1] + "': the fabric has no such cable");
  Cable& cable = store.cable(static_cast<std::size_t>(index));
  if (word(words, 2) == "renew") {
    cable.epoch.fetch_add(1);
  } else {
    cable.state.store(static_cast<std::uint32_t>(parse_cable_state(words[2])));
  }
  return "";
}

// port HOST:DEVICE up|down
std::string set_port(const Store& store, const Words& words) {
  Port& port = store.port(need_port(store, word(words, 1)));
  const std::string& state = word(words, 2);
  if (state != "up" && state != "down") refuse_command("port state '" + state + "': up or down");
  port.down.store(state == "down" ? 1 : 0);
  return "";
}

// gids HOST:DEVICE GID...
std::string set_gids(const Store& store, const Words& words) {
  Port& port = store.port(need_port(store, word(words, 1)));
  std::vector<GidEntry> all;
  for (std::size_t i = 2; i < words.size(); ++i) {
    const auto more =
        parse_gid(words[i], own_address(port.host, port.device), store.header().profile);
    all.insert(all.end(), more.begin(), more.end());
  }
  if (all.size() > kGidsMax) refuse_command("more than " + std::to_string(kGidsMax) + " GIDs");
  all.resize(kGidsMax);
  for (std::size_t i = 0; i < kGidsMax; ++i) port.gids[i].store(all[i].pack());
  return "";
}

// budget HOST:DEVICE queue_pairs|memory_regions|protection_domains NUMBER
std::string set_budget(const Store& store, const Words& words) {
  Port& port = store.port(need_port(store, word(words, 1)));
  const std::string& name = word(words, 2);
  const auto limit = static_cast<std::uint32_t>(parse_number(word(words, 3)));
  if (name == "queue_pairs") {
    port.queue_pair_limit.store(limit);
  } else if (name == "memory_regions") {
    port.memory_regions.limit.store(limit);
  } else if (name == "protection_domains") {
    port.protection_domains.limit.store(limit);
  } else {
    refuse_command("budget '" + name + "': queue_pairs, memory_regions or protection_domains");
  }
  return "";
}

// idle nap|spin, trace on|off
std::string set_switch(std::atomic<std::uint32_t>& place, const Words& words, const char* off,
                       const char* on) {
  const std::string& value = word(words, 1);
  if (value != off && value != on) refuse_command("'" + value + "': " + off + " or " + on);
  place.store(value == on ? 1 : 0);
  return "";
}

// --- faults

struct RulePlan {
  FaultKind kind{};
  Call call{};
  std::int32_t port = -1;
  std::string host;
  std::uint64_t first = 0;
  std::uint64_t count = 1;
  double probability = 1;
  std::uint64_t seed = 0;
  std::int64_t parameter = 0;
};

void set_option(const Store& store, RulePlan& plan, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (name == "at" && value.find(':') != std::string::npos) {
    plan.port = static_cast<std::int32_t>(need_port(store, value));
  } else if (name == "at") {
    if (store.find_host(value) < 0) refuse_command("'" + value + "': the fabric has no such host");
    plan.host = value;
  } else if (name == "call") {
    const auto call = find_call(value);
    if (!call) refuse_command("call '" + value + "': there is none of this name");
    plan.call = *call;
  } else if (name == "first") {
    plan.first = parse_number(value);
  } else if (name == "count") {
    plan.count = value == "all" ? UINT64_MAX : parse_number(value);
  } else if (name == "probability") {
    char* end = nullptr;
    plan.probability = std::strtod(value.c_str(), &end);
    if (end == value.c_str() || *end != 0 || !(plan.probability >= 0 && plan.probability <= 1)) {
      refuse_command("probability '" + value + "': a number from 0 to 1");
    }
  } else if (name == "seed") {
    plan.seed = parse_number(value);
  } else if (name == "value") {
    plan.parameter = signed_number(value);
  } else {
    refuse_command("option '" + text +
                   "': at=, call=, first=, count=, probability=, seed= or value=");
  }
}

// Returns the rule's number.
std::size_t add_rule(const Store& store, const RulePlan& plan) {
  Header& header = store.header();
  for (std::size_t i = 0; i < kRulesMax; ++i) {
    Rule& rule = header.rules[i];
    auto expected = static_cast<std::uint32_t>(RuleState::kFree);
    if (!rule.state.compare_exchange_strong(expected,
                                            static_cast<std::uint32_t>(RuleState::kWriting))) {
      continue;
    }
    rule.kind = static_cast<std::uint32_t>(plan.kind);
    rule.call = static_cast<std::uint32_t>(plan.call);
    rule.port = plan.port;
    std::snprintf(rule.host, sizeof rule.host, "%s", plan.host.c_str());
    rule.first = plan.first;
    rule.count = plan.count;
    rule.chance = static_cast<std::uint64_t>(plan.probability * 4294967296.0);
    rule.seed = plan.seed;
    rule.parameter = plan.parameter;
    rule.seen.store(0);
    rule.applied.store(0);
    rule.state.store(static_cast<std::uint32_t>(RuleState::kActive));
    header.rules_active.store(1);
    return i;
  }
  refuse_command("there are " + std::to_string(kRulesMax) + " faults already: clear some");
}

// fault KIND [at=HOST[:DEVICE]] [call=NAME] [first=N] [count=N|all] [probability=P] [seed=N]
// [value=N]
std::string add_fault(const Store& store, const Words& words) {
  RulePlan plan;
  const auto kind = find_fault(word(words, 1));
  if (!kind) refuse_command("fault '" + words[1] + "': there is none of this name");
  plan.kind = *kind;
  bool has_call = false;
  for (std::size_t i = 2; i < words.size(); ++i) {
    set_option(store, plan, words[i]);
    has_call = has_call || words[i].substr(0, 5) == "call=";
  }
  if (is_call_fault(plan.kind) != has_call) {
    refuse_command("fault '" + words[1] +
                   "': " + (has_call ? "it has no call=" : "it needs call=NAME"));
  }
  return std::to_string(add_rule(store, plan));
}

Rule& need_rule(const Store& store, const Words& words) {
  const std::uint64_t number = parse_number(word(words, 1));
  if (number >= kRulesMax) refuse_command("fault " + words[1] + ": there is none of this number");
  return store.header().rules[number];
}

std::string numbers_of(const Rule& rule) {
  return "{\"seen\":" + std::to_string(rule.seen.load()) +
         ",\"applied\":" + std::to_string(rule.applied.load()) + "}";
}

// clear [NUMBER]
std::string clear(const Store& store, const Words& words) {
  if (words.size() > 1) {
    need_rule(store, words).state.store(static_cast<std::uint32_t>(RuleState::kFree));
    return "";
  }
  // Those that another tool is just writing, or died in writing, too.
  for (Rule& rule : store.header().rules) {
    rule.state.store(static_cast<std::uint32_t>(RuleState::kFree));
  }
  store.header().rules_active.store(0);
  return "";
}

// --- answers

constexpr std::array<const char*, kCounts> kCountNames = {
    "sent",       "sent_bytes", "received",       "received_bytes", "lost",
    "duplicated", "corrupted",  "truncated",      "delayed",        "reordered",
    "no_receive", "absent",     "frame_mismatch", "errors"};

// counters HOST:DEVICE
std::string counters(const Store& store, const Words& words) {
  const std::size_t port = need_port(store, word(words, 1));
  std::string text = "{";
  for (std::size_t i = 0; i < kCounts; ++i) {
    std::uint64_t sum = 0;
    for (std::uint32_t slot = 0; slot < store.header().endpoints_per_port; ++slot) {
      sum += store.endpoint(port, slot).counts[i].load(std::memory_order_relaxed);
    }
    text += std::string(i == 0 ? "" : ",") + "\"" + kCountNames[i] + "\":" + std::to_string(sum);
  }
  return text + "}";
}

int held(const Budget& budget) {
  return static_cast<int>(
      std::count_if(std::begin(budget.owners), std::end(budget.owners),
                    [](const std::atomic<OwnerWord>& each) { return is_alive(each.load()); }));
}

std::string queue_pairs_of(const Store& store, std::size_t port) {
  std::string text = "[";
  for (std::uint32_t slot = 0; slot < store.header().endpoints_per_port; ++slot) {
    const Endpoint& each = store.endpoint(port, slot);
    const OwnerWord owner = each.owner.load();
    if (!is_alive(owner)) continue;
    const std::uint32_t number = (slot + 1) << 8 | (each.incarnation.load() & 0xff);
    text += std::string(text.size() == 1 ? "" : ",") + "{\"number\":" + std::to_string(number) +
            ",\"pid\":" + std::to_string(pid_of(owner)) +
            ",\"state\":" + std::to_string(each.state.load()) +
            ",\"posted\":" + std::to_string(each.posted.load()) + "}";
  }
  return text + "]";
}

// held HOST:DEVICE: what living processes have of it
std::string held_at(const Store& store, const Words& words) {
  const std::size_t port = need_port(store, word(words, 1));
  return "{\"queue_pairs\":" + queue_pairs_of(store, port) +
         ",\"memory_regions\":" + std::to_string(held(store.port(port).memory_regions)) +
         ",\"protection_domains\":" + std::to_string(held(store.port(port).protection_domains)) +
         ",\"active\":" + (store.is_active(store.port(port)) ? "true" : "false") + "}";
}

// ports
std::string ports(const Store& store) {
  std::string text = "[";
  for (std::size_t port = 0; port < store.header().ports; ++port) {
    text += std::string(port == 0 ? "" : ",") + "\"" + store.port_name(port) + "\"";
  }
  return text + "]";
}

}  // namespace

std::string carry_out(const Store& store, std::string_view command) {
  const Words words = words_of(command);
  if (words.empty()) refuse_command("an empty command");
  const std::string& name = words[0];
  if (name == "cable") return set_cable(store, words);
  if (name == "port") return set_port(store, words);
  if (name == "gids") return set_gids(store, words);
  if (name == "budget") return set_budget(store, words);
  if (name == "idle") return set_switch(store.header().idle, words, "nap", "spin");
  if (name == "trace") return set_switch(store.header().trace, words, "off", "on");
  if (name == "fault") return add_fault(store, words);
  if (name == "clear") return clear(store, words);
  if (name == "applied") return numbers_of(need_rule(store, words));
  if (name == "counters") return counters(store, words);
  if (name == "held") return held_at(store, words);
  if (name == "ports") return ports(store);
  refuse_command("'" + name +
                 "': expected cable, port, gids, budget, idle, trace, fault, clear, applied, "
                 "counters, held or ports");
}

// For the Python side. Returns 0 with the answer, 1 with what is wrong, both as text of up to
// `most` bytes with its end.
VERBS_API int standfast_emulator_command(const char* fabric_path, const char* command, char* answer,
                                         std::size_t most) {
  static std::mutex mutex;
  static auto& stores = *new std::map<std::string, std::unique_ptr<Store>>;
  const std::lock_guard lock(mutex);
  std::string text;
  int status = 0;
  try {
    auto& store = stores[fabric_path];
    if (store == nullptr) store = Store::open(fabric_path);
    const bool is_over = std::string_view(command) == "forget";
    if (is_over) stores.erase(fabric_path);
    if (!is_over) text = carry_out(*store, command);
  } catch (const std::exception& error) {
    text = error.what();
    status = 1;
    if (const auto found = stores.find(fabric_path);
        found != stores.end() && found->second == nullptr) {
      stores.erase(found);
    }
  }
  std::snprintf(answer, most, "%s", text.c_str());
  return status;
}

}  // namespace standfast::emulator
