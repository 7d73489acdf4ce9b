#include "emulator/plan.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace standfast::emulator {
namespace {

// Sources: README.md, "Limits".
constexpr Limits kAppleLimits{.queue_pairs = 10,
                              .queue_pairs_told = 11,
                              .protection_domains = 11,
                              .memory_regions = 100,
                              .work_requests = 4095,
                              .window_frames = 1023,
                              .message_frames = 4095,
                              .gather_entries = 4};

// A network card has far more than a test needs.
constexpr Limits kCardLimits{.queue_pairs = 32,
                             .queue_pairs_told = 32,
                             .protection_domains = 256,
                             .memory_regions = 1024,
                             .work_requests = 4095,
                             .window_frames = 262144,
                             .message_frames = 262144,
                             .gather_entries = 4};

constexpr std::uint8_t kRoceV1 = 0;
constexpr std::uint8_t kRoceV2 = 2;
constexpr std::size_t kEndsMax = 64;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

std::uint32_t* find_limit(Limits& limits, std::string_view name) {
  const std::pair<std::string_view, std::uint32_t*> all[] = {
      {"queue_pairs", &limits.queue_pairs},
      {"queue_pairs_told", &limits.queue_pairs_told},
      {"protection_domains", &limits.protection_domains},
      {"memory_regions", &limits.memory_regions},
      {"work_requests", &limits.work_requests},
      {"window_frames", &limits.window_frames},
      {"message_frames", &limits.message_frames},
      {"gather_entries", &limits.gather_entries}};
  for (const auto& [each, place] : all) {
    if (each == name) return place;
  }
  return nullptr;
}

void check_name(const std::string& name) {
  if (name.empty() || name.size() >= kNameMax) {
    refuse("'" + name + "' is no name: it needs 1 to " + std::to_string(kNameMax - 1) +
           " characters");
  }
}

bool parse_ipv4(std::string_view text, std::uint64_t& value) {
  value = 0;
  const char* at = text.data();
  const char* end = at + text.size();
  for (int part = 0; part < 4; ++part) {
    unsigned number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || number > 255) return false;
    value = value << 8 | number;
    at = next;
    if (part < 3 && (at == end || *at++ != '.')) return false;
  }
  return at == end;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Plan parse() {
    // Limits and tables depend on the profile, wherever in the file it stands.
    each_line([this](const Words& words) {
      if (words[0] == "profile") set_profile(words);
    });
    plan_.limits = plan_.profile == Profile::kApple ? kAppleLimits : kCardLimits;
    if (plan_.profile != Profile::kApple) plan_.policy = Policy::kDrop;
    each_line([this](const Words& words) { take(words); });
    if (plan_.limits.memory_regions > kBudgetMax || plan_.limits.protection_domains > kBudgetMax) {
      refuse("a limit is above " + std::to_string(kBudgetMax) + ", which is the most there can be");
    }
    if (plan_.limits.queue_pairs == 0 || plan_.limits.queue_pairs > 64) {
      refuse("limit queue_pairs must be 1 to 64; to use up a budget, see 'budget' in README.md");
    }
    return std::move(plan_);
  }

 private:
  using Words = std::vector<std::string>;

  template <typename Function>
  void each_line(Function function) {
    std::size_t number = 0;
    for (std::string_view rest = text_; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const Words words = words_of(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      ++number;
      if (words.empty()) continue;
      try {
        function(words);
      } catch (const std::invalid_argument& error) {
        refuse("line " + std::to_string(number) + ": " + error.what());
      }
    }
  }

  static void need(const Words& words, std::size_t least, const char* form) {
    if (words.size() < least) refuse(std::string("too few words; the form is: ") + form);
  }

  void set_profile(const Words& words) {
    need(words, 2, "profile apple|roce|infiniband");
    if (words[1] == "apple") {
      plan_.profile = Profile::kApple;
    } else if (words[1] == "roce") {
      plan_.profile = Profile::kRoce;
    } else if (words[1] == "infiniband") {
      plan_.profile = Profile::kInfiniBand;
    } else {
      refuse("profile '" + words[1] + "': apple, roce or infiniband");
    }
  }

  void take(const Words& words) {
    if (words[0] == "profile") return;
    if (words[0] == "policy") return set_policy(words);
    if (words[0] == "idle") return set_idle(words);
    if (words[0] == "limit") return set_limit(words);
    if (words[0] == "early_receives") return set_early_receives(words);
    if (words[0] == "trace") return set_trace(words);
    if (words[0] == "host") return add_host(words);
    if (words[0] == "port") return add_port(words);
    if (words[0] == "cable") return add_cable(words);
    if (words[0] == "gids") return set_gids(words);
    refuse("'" + words[0] +
           "': expected profile, policy, idle, limit, early_receives, trace, host, port, cable or "
           "gids");
  }

  void set_policy(const Words& words) {
    need(words, 2, "policy credit|drop|absent-completes");
    if (words[1] == "credit") {
      plan_.policy = Policy::kCredit;
    } else if (words[1] == "drop") {
      plan_.policy = Policy::kDrop;
    } else if (words[1] == "absent-completes") {
      plan_.policy = Policy::kAbsentCompletes;
    } else {
      refuse("policy '" + words[1] + "': credit, drop or absent-completes");
    }
  }

  void set_idle(const Words& words) {
    need(words, 2, "idle nap|spin");
    if (words[1] != "nap" && words[1] != "spin") refuse("idle '" + words[1] + "': nap or spin");
    plan_.idle = words[1] == "nap" ? Idle::kNap : Idle::kSpin;
  }

  void set_limit(const Words& words) {
    need(words, 3, "limit NAME NUMBER");
    std::uint32_t* place = find_limit(plan_.limits, words[1]);
    if (place == nullptr) refuse("limit '" + words[1] + "': there is none of this name");
    *place = static_cast<std::uint32_t>(parse_number(words[2]));
  }

  void set_early_receives(const Words& words) {
    need(words, 2, "early_receives accepted|refused");
    if (words[1] != "accepted" && words[1] != "refused") {
      refuse("early_receives '" + words[1] + "': accepted or refused");
    }
    plan_.early_receives_refused = words[1] == "refused";
  }

  void set_trace(const Words& words) {
    need(words, 2, "trace on|off");
    if (words[1] != "on" && words[1] != "off") refuse("trace '" + words[1] + "': on or off");
    plan_.trace = words[1] == "on";
  }

  void add_host(const Words& words) {
    need(words, 2, "host NAME");
    note_host(words[1]);
  }

  void note_host(const std::string& host) {
    check_name(host);
    if (std::find(plan_.hosts.begin(), plan_.hosts.end(), host) == plan_.hosts.end()) {
      plan_.hosts.push_back(host);
    }
  }

  void add_port(const Words& words) {
    need(words, 2, "port HOST:DEVICE[:ADDRESS] [up|down]");
    PortPlan& port = new_port(words[1]);
    if (words.size() > 2 && words[2] != "up" && words[2] != "down") {
      refuse("port state '" + words[2] + "': up or down");
    }
    port.down = words.size() < 3 || words[2] == "down";
  }

  void add_cable(const Words& words) {
    need(words, 4, "cable NAME HOST:DEVICE[:ADDRESS] HOST:DEVICE[:ADDRESS]... [up|down|...]");
    check_name(words[1]);
    for (const CablePlan& other : plan_.cables) {
      if (other.name == words[1]) refuse("cable '" + words[1] + "' is there twice");
    }
    const bool has_state = words.back().find(':') == std::string::npos;
    const CableState state = has_state ? parse_cable_state(words.back()) : CableState::kUp;
    const std::size_t end = words.size() - (has_state ? 1 : 0);
    if (end < 4 || end - 2 > kEndsMax) refuse("a cable has 2 ends; a switch has up to 64");
    plan_.cables.push_back({words[1], state});
    for (std::size_t i = 2; i < end; ++i) {
      new_port(words[i]).cable = static_cast<int>(plan_.cables.size()) - 1;
    }
  }

  PortPlan& new_port(const std::string& text) {
    const std::size_t first = text.find(':');
    if (first == std::string::npos) refuse("'" + text + "': the form is HOST:DEVICE[:ADDRESS]");
    const std::size_t second = text.find(':', first + 1);
    PortPlan port;
    port.host = text.substr(0, first);
    port.device = text.substr(first + 1, second == std::string::npos ? second : second - first - 1);
    check_name(port.device);
    if (find_port(port.host, port.device) != nullptr) {
      refuse("'" + port.host + ":" + port.device + "' is there twice");
    }
    note_host(port.host);
    const std::uint64_t own = own_address(port.host, port.device);
    port.gids = parse_gid("fe80", own, plan_.profile);
    // On InfiniBand an address is that of IP over it, and in no table.
    if (second != std::string::npos && plan_.profile != Profile::kInfiniBand) {
      const auto more = parse_gid(text.substr(second + 1), own, plan_.profile);
      port.gids.insert(port.gids.end(), more.begin(), more.end());
    }
    plan_.ports.push_back(std::move(port));
    return plan_.ports.back();
  }

  PortPlan* find_port(std::string_view host, std::string_view device) {
    for (PortPlan& port : plan_.ports) {
      if (port.host == host && port.device == device) return &port;
    }
    return nullptr;
  }

  void set_gids(const Words& words) {
    need(words, 2, "gids HOST:DEVICE [none|fe80|fe80:HEX|ADDRESS]...");
    const std::size_t colon = words[1].find(':');
    PortPlan* port = colon == std::string::npos
                         ? nullptr
                         : find_port(words[1].substr(0, colon), words[1].substr(colon + 1));
    if (port == nullptr) refuse("'" + words[1] + "' was not on a port or cable line before");
    port->gids.clear();
    for (std::size_t i = 2; i < words.size(); ++i) {
      const auto more = parse_gid(words[i], own_address(port->host, port->device), plan_.profile);
      port->gids.insert(port->gids.end(), more.begin(), more.end());
    }
    if (port->gids.size() > kGidsMax) {
      refuse("more than " + std::to_string(kGidsMax) + " GIDs: that is the table's size");
    }
  }

  std::string_view text_;
  Plan plan_;
};

}  // namespace

Plan parse_plan(std::string_view text) { return Parser(text).parse(); }

std::vector<std::string> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string> words;
  constexpr std::string_view kBlank = " \t\r\n";
  for (std::size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    words.emplace_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return words;
}

std::vector<GidEntry> parse_gid(std::string_view text, std::uint64_t own, Profile profile) {
  GidEntry entry;
  if (text == "none") {
    return {entry};
  }
  if (text.substr(0, 4) == "fe80") {
    entry.kind = GidKind::kLinkLocal;
    entry.value = own;
    if (text.size() > 4) {
      const auto [end, error] =
          std::from_chars(text.data() + 5, text.data() + text.size(), entry.value, 16);
      if (text[4] != ':' || error != std::errc{} || end != text.data() + text.size() ||
          entry.value >> 48 != 0) {
        refuse("'" + std::string(text) + "' is no GID: fe80:HEX has up to 12 digits");
      }
    }
  } else if (parse_ipv4(text, entry.value)) {
    entry.kind = GidKind::kIpv4;
  } else {
    refuse("'" + std::string(text) + "' is no GID: none, fe80, fe80:HEX or an IPv4 address");
  }
  if (profile != Profile::kRoce) return {entry};
  GidEntry second = entry;
  entry.type = kRoceV1;
  second.type = kRoceV2;
  return {entry, second};
}

std::uint64_t own_address(std::string_view host, std::string_view device) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::string_view part : {host, std::string_view(":"), device}) {
    for (const char each : part) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  }
  return (hash ^ hash >> 48) & ((std::uint64_t{1} << 48) - 1);
}

CableState parse_cable_state(std::string_view text) {
  if (text == "up") return CableState::kUp;
  if (text == "down") return CableState::kDown;
  if (text == "errors") return CableState::kErrors;
  if (text == "segv") return CableState::kSegv;
  if (text == "wedged") return CableState::kWedged;
  refuse("cable state '" + std::string(text) + "': up, down, errors, segv or wedged");
}

std::uint64_t parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    refuse("'" + std::string(text) + "' is not a whole number, 0 or more");
  }
  return value;
}

}  // namespace standfast::emulator
