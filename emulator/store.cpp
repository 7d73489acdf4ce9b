#include "emulator/store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace standfast::emulator {
namespace {

// Changes with the layout: a file of another build is refused.
constexpr std::uint64_t kMagic =
    0x7366'656d'7500'0000 ^ (sizeof(Header) << 20) ^ (sizeof(Port) << 8) ^ sizeof(Endpoint);
constexpr std::size_t kPage = 16384;  // of any system we know, or a multiple of it

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct HostName {
  char name[kNameMax];
};

// Where the parts begin, for these numbers of hosts, cables, ports and endpoints.
struct Layout {
  std::size_t hosts, cables, ports, endpoints, arenas, bytes;
};

constexpr std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

Layout layout_of(const Header& header) {
  const std::size_t endpoints = std::size_t{header.ports} * header.endpoints_per_port;
  Layout layout{};
  layout.hosts = rounded(sizeof(Header), kLine);
  layout.cables = rounded(layout.hosts + header.hosts * sizeof(HostName), kLine);
  layout.ports = rounded(layout.cables + header.cables * sizeof(Cable), kLine);
  layout.endpoints = rounded(layout.ports + header.ports * sizeof(Port), kPage);
  layout.arenas = rounded(layout.endpoints + endpoints * sizeof(Endpoint), kPage);
  layout.bytes = layout.arenas + endpoints * kArenaBytes;
  return layout;
}

void set_name(char (&place)[kNameMax], const std::string& name) {
  std::strncpy(place, name.c_str(), kNameMax - 1);
}

void fill_header(Header& header, const Plan& plan) {
  header.magic = kMagic;
  header.hosts = static_cast<std::uint32_t>(plan.hosts.size());
  header.ports = static_cast<std::uint32_t>(plan.ports.size());
  header.cables = static_cast<std::uint32_t>(plan.cables.size());
  header.endpoints_per_port = plan.limits.queue_pairs;
  header.profile = plan.profile;
  header.policy = plan.policy;
  header.early_receives_refused = plan.early_receives_refused ? 1 : 0;
  header.limits = plan.limits;
  header.idle = static_cast<std::uint32_t>(plan.idle);
  header.trace = plan.trace ? 1 : 0;
  header.file_bytes = layout_of(header).bytes;
}

void fill_port(Port& port, const PortPlan& plan, const Limits& limits) {
  set_name(port.host, plan.host);
  set_name(port.device, plan.device);
  port.cable = plan.cable;
  port.down = plan.down ? 1 : 0;
  port.queue_pair_limit = limits.queue_pairs;
  port.protection_domains.limit = limits.protection_domains;
  port.memory_regions.limit = limits.memory_regions;
  for (std::size_t i = 0; i < plan.gids.size(); ++i) port.gids[i] = plan.gids[i].pack();
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    errno = ENOENT;
    fail("open fabric file " + path);
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::byte* map(int file, std::size_t bytes, const std::string& path) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) fail("mmap " + path);
  return static_cast<std::byte*>(base);
}

std::byte* attach(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat info{};
  fstat(file, &info);
  std::byte* base = map(file, static_cast<std::size_t>(info.st_size), path);
  close(file);
  if (reinterpret_cast<Header*>(base)->magic != kMagic) {
    throw std::invalid_argument(path + " was made by another version of the emulator: remove it");
  }
  return base;
}

// Complete before it gets its name, and only the first of several makers gives it one.
void make(const std::string& path, const Plan& plan) {
  Header numbers{};
  fill_header(numbers, plan);
  const std::string unfinished = path + "." + std::to_string(getpid());
  const int file = open(unfinished.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) fail("open " + unfinished);
  if (ftruncate(file, static_cast<off_t>(numbers.file_bytes)) != 0) fail("ftruncate " + unfinished);
  std::byte* base = map(file, numbers.file_bytes, unfinished);
  close(file);
  Header& header = *new (base) Header{};
  fill_header(header, plan);
  const Layout layout = layout_of(header);
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    set_name(reinterpret_cast<HostName*>(base + layout.hosts)[i].name, plan.hosts[i]);
  }
  for (std::size_t i = 0; i < plan.cables.size(); ++i) {
    Cable& cable = *new (base + layout.cables + i * sizeof(Cable)) Cable{};
    set_name(cable.name, plan.cables[i].name);
    cable.state = static_cast<std::uint32_t>(plan.cables[i].state);
  }
  for (std::size_t i = 0; i < plan.ports.size(); ++i) {
    Port& port = *new (base + layout.ports + i * sizeof(Port)) Port{};
    fill_port(port, plan.ports[i], plan.limits);
  }
  // Endpoints and arenas stay what the file system gives: zero bytes that take no room.
  munmap(base, numbers.file_bytes);
  const int linked = link(unfinished.c_str(), path.c_str());
  const int error = errno;
  unlink(unfinished.c_str());
  errno = error;
  if (linked != 0 && error != EEXIST) fail("link " + path);
}

}  // namespace

std::unique_ptr<Store> Store::open(const std::string& fabric_path) {
  const std::string path = fabric_path + ".state";
  std::byte* base = attach(path);
  if (base == nullptr) {
    make(path, parse_plan(read_text(fabric_path)));
    base = attach(path);
  }
  if (base == nullptr) fail("open " + path);
  return std::unique_ptr<Store>(new Store(fabric_path, base));
}

Store::~Store() { munmap(base_, header().file_bytes); }

const char* Store::host(std::size_t index) const {
  return reinterpret_cast<HostName*>(base_ + layout_of(header()).hosts)[index].name;
}

Cable& Store::cable(std::size_t index) const {
  return *reinterpret_cast<Cable*>(base_ + layout_of(header()).cables + index * sizeof(Cable));
}

Port& Store::port(std::size_t index) const {
  return *reinterpret_cast<Port*>(base_ + layout_of(header()).ports + index * sizeof(Port));
}

Endpoint& Store::endpoint(std::size_t port, std::size_t slot) const {
  const std::size_t index = port * header().endpoints_per_port + slot;
  return *reinterpret_cast<Endpoint*>(base_ + layout_of(header()).endpoints +
                                      index * sizeof(Endpoint));
}

std::byte* Store::arena(std::size_t port, std::size_t slot) const {
  const std::size_t index = port * header().endpoints_per_port + slot;
  return base_ + layout_of(header()).arenas + index * kArenaBytes;
}

int Store::find_host(std::string_view name) const {
  for (std::size_t i = 0; i < header().hosts; ++i) {
    if (name == host(i)) return static_cast<int>(i);
  }
  return -1;
}

int Store::find_cable(std::string_view name) const {
  for (std::size_t i = 0; i < header().cables; ++i) {
    if (name == cable(i).name) return static_cast<int>(i);
  }
  return -1;
}

int Store::find_port(std::string_view name) const {
  for (std::size_t i = 0; i < header().ports; ++i) {
    if (name == port_name(i)) return static_cast<int>(i);
  }
  return -1;
}

std::string Store::port_name(std::size_t index) const {
  return std::string(port(index).host) + ":" + port(index).device;
}

std::uint16_t Store::lid(std::size_t port) const {
  const bool is_infiniband = header().profile == Profile::kInfiniBand;
  return is_infiniband ? static_cast<std::uint16_t>(port + 1) : std::uint16_t{0};
}

bool Store::is_active(const Port& port) const {
  if (port.down.load(std::memory_order_relaxed) != 0) return false;
  if (port.cable < 0) return true;  // a port line that says "up"
  const auto state = static_cast<CableState>(
      cable(static_cast<std::size_t>(port.cable)).state.load(std::memory_order_relaxed));
  return state == CableState::kUp || state == CableState::kWedged;
}

void Store::append(const char* ending, std::string_view line) const {
  std::string text(line);
  text += '\n';
  const std::string path = path_ + ending;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;  // a test double has no better place to complain
  [[maybe_unused]] const ssize_t written = write(file, text.data(), text.size());
  close(file);
}

}  // namespace standfast::emulator
