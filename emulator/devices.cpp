// Devices and their ports: listing, opening, asking. Called by programs, from any thread.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "emulator/exports.h"
#include "emulator/gid.h"
#include "emulator/objects.h"
#include "emulator/post_poll.h"
#include "emulator/progress.h"

namespace standfast::emulator {
namespace {

constexpr char kFabricVariable[] = "STANDFAST_EMULATOR_FABRIC";
constexpr char kHostVariable[] = "STANDFAST_EMULATOR_HOST";

using verbs::Context;
using verbs::Device;

std::uint64_t network_order(std::uint64_t value) {
  std::uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (56 - 8 * i));
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::uint64_t guid_of(const EmulatedDevice& device) {
  return own_address(device.shared().host, device.shared().device);
}

std::unique_ptr<EmulatedDevice> make_device(FabricView& fabric, std::size_t port) {
  auto device = std::make_unique<EmulatedDevice>();
  std::memset(static_cast<Device*>(device.get()), 0, sizeof(Device));
  const bool is_apple = fabric.store->header().profile == Profile::kApple;
  device->node_type = verbs::NodeType::kChannelAdapter;
  device->transport_type =
      is_apple ? verbs::Transport::kThunderbolt : verbs::Transport::kInfiniBand;
  std::snprintf(device->name, sizeof device->name, "%s", fabric.store->port(port).device);
  std::snprintf(device->dev_name, sizeof device->dev_name, "uverbs%zu", fabric.devices.size());
  device->fabric = &fabric;
  device->port = port;
  return device;
}

std::unique_ptr<FabricView> make_view(const char* path, const char* host) {
  auto fabric = std::make_unique<FabricView>();
  fabric->store = Store::open(path);
  fabric->host = host;
  if (fabric->store->find_host(host) < 0) {
    throw std::invalid_argument(std::string("host '") + host + "' (" + kHostVariable +
                                ") is on no line of it");
  }
  for (std::size_t port = 0; port < fabric->store->header().ports; ++port) {
    if (fabric->host != fabric->store->port(port).host) continue;
    fabric->devices.push_back(make_device(*fabric, port));
  }
  return fabric;
}

// The fabric that the environment names; null, with errno, if it is not to be had; null, without,
// if none is named: a machine without RDMA.
FabricView* current_fabric() {
  const char* path = std::getenv(kFabricVariable);
  const char* host = std::getenv(kHostVariable);
  errno = 0;
  if (path == nullptr || host == nullptr) return nullptr;
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  for (const auto& each : all.fabrics) {
    if (each->store->path() == path && each->host == host) return each.get();
  }
  try {
    all.fabrics.push_back(make_view(path, host));
    return all.fabrics.back().get();
  } catch (const std::exception& error) {
    // Programs cannot show why: whoever wrote the fabric file has to see it.
    std::fprintf(stderr, "standfast emulator: %s: %s\n", path, error.what());
    errno = darwin::kInvalid;
    return nullptr;
  }
}

void fill_port(const EmulatedDevice& device, verbs::PortAttr& attributes) {
  const Store& store = device.store();
  const bool is_active = store.is_active(device.shared());
  attributes.state = is_active ? verbs::PortState::kActive : verbs::PortState::kDown;
  attributes.max_mtu = verbs::Mtu::k4096;
  const bool is_apple = store.header().profile == Profile::kApple;
  attributes.active_mtu = is_apple ? verbs::Mtu::k1024 : verbs::Mtu::k4096;
  attributes.gid_tbl_len = static_cast<std::int32_t>(kGidsMax);
  attributes.max_msg_sz = store.header().limits.message_frames * std::uint32_t{kFrameBytes};
  attributes.pkey_tbl_len = 1;
  attributes.active_width = 2;                   // 4 lanes
  attributes.active_speed = is_apple ? 32 : 64;  // EDR, HDR: 25 and 50 Gb/s per lane
  attributes.phys_state = is_active ? 5 : 3;     // link up; disabled
  attributes.lid = store.lid(device.port);
  attributes.link_layer =
      attributes.lid != 0 ? verbs::LinkLayer::kInfiniBand : verbs::LinkLayer::kEthernet;
}

void fill_device(const EmulatedDevice& device, verbs::DeviceAttr& attributes) {
  const Limits& limits = device.store().header().limits;
  std::snprintf(attributes.fw_ver, sizeof attributes.fw_ver, "emulated");
  attributes.node_guid = attributes.sys_image_guid = network_order(guid_of(device));
  attributes.max_mr_size = std::uint64_t{1} << 40;
  attributes.page_size_cap = 4096;
  attributes.max_qp = static_cast<std::int32_t>(limits.queue_pairs_told);
  attributes.max_qp_wr = static_cast<std::int32_t>(limits.work_requests);
  attributes.max_sge = static_cast<std::int32_t>(limits.gather_entries);
  attributes.max_cq = 256;
  attributes.max_cqe = 65536;
  attributes.max_mr = static_cast<std::int32_t>(limits.memory_regions);
  attributes.max_pd = static_cast<std::int32_t>(limits.protection_domains);
  attributes.max_pkeys = 1;
  attributes.phys_port_cnt = 1;
}

bool make_pipe(int (&ends)[2]) {
  if (pipe(ends) != 0) return false;
  for (const int each : ends) fcntl(each, F_SETFD, FD_CLOEXEC);
  // Who tells must never wait for who listens.
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  return true;
}

}  // namespace

bool make_channel_pipe(int (&ends)[2]) { return make_pipe(ends); }

VERBS_API Device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  FabricView* fabric = current_fabric();
  if (fabric == nullptr && errno != 0) return nullptr;
  const std::size_t devices = fabric == nullptr ? 0 : fabric->devices.size();
  if (fabric != nullptr) {
    const int number = hook(*fabric->store, fabric->host.c_str(), -1, Call::kGetDeviceList);
    if (number != 0) return refuse<Device*>(number);
  }
  auto** list = static_cast<Device**>(std::calloc(devices + 1, sizeof(Device*)));
  if (list == nullptr) return refuse<Device*>(darwin::kNoMemory);
  for (std::size_t i = 0; i < devices; ++i) list[i] = fabric->devices[i].get();
  if (count != nullptr) *count = static_cast<int>(devices);
  return list;
}

VERBS_API void ibv_free_device_list(Device** list) { std::free(list); }

VERBS_API const char* ibv_get_device_name(Device* device) { return device->name; }

VERBS_API std::uint64_t ibv_get_device_guid(Device* device) {
  return network_order(guid_of(*static_cast<EmulatedDevice*>(device)));
}

VERBS_API Context* ibv_open_device(Device* base) {
  auto& device = *static_cast<EmulatedDevice*>(base);
  const int number =
      hook(device.store(), nullptr, static_cast<int>(device.port), Call::kOpenDevice);
  if (number != 0) return refuse<Context>(number);
  int ends[2];
  if (!make_pipe(ends)) return nullptr;
  auto* context = new EmulatedContext{};
  context->device = base;
  context->ops.poll_cq = poll_completions;
  context->ops.req_notify_cq = request_notification;
  context->ops.post_send = post_sends;
  context->ops.post_recv = post_receives;
  context->cmd_fd = -1;
  context->async_fd = ends[0];
  context->async_write_fd = ends[1];
  context->num_comp_vectors = 1;
  context->emulated = &device;
  context->pid = getpid();
  context->was_active = device.store().is_active(device.shared());
  {
    const std::lock_guard lock(library().mutex);
    library().contexts.push_back(context);
  }
  see_to_progress();
  return context;
}

VERBS_API int ibv_close_device(Context* base) {
  auto* context = static_cast<EmulatedContext*>(base);
  const EmulatedDevice& device = *context->emulated;
  const int number =
      hook(device.store(), nullptr, static_cast<int>(device.port), Call::kCloseDevice);
  if (number != 0) return number;
  if (const int children = context->children.load(); children > 0) {
    device.store().report("close_device " + device.name_at_host() + ": " +
                          std::to_string(children) + " of its objects are still there");
    return darwin::kBusy;
  }
  {
    const std::lock_guard lock(library().mutex);
    std::erase(library().contexts, context);
  }
  close(context->async_fd);
  close(context->async_write_fd);
  delete context;
  return 0;
}

VERBS_API int ibv_query_device(Context* context, verbs::DeviceAttr* attributes) {
  const EmulatedDevice& device = *static_cast<EmulatedContext*>(context)->emulated;
  const int number =
      hook(device.store(), nullptr, static_cast<int>(device.port), Call::kQueryDevice);
  if (number != 0) return number;
  *attributes = verbs::DeviceAttr{};
  fill_device(device, *attributes);
  return 0;
}

VERBS_API int ibv_query_port(Context* context, std::uint8_t port, verbs::PortAttr* attributes) {
  const EmulatedDevice& device = *static_cast<EmulatedContext*>(context)->emulated;
  const int number = hook(device.store(), nullptr, static_cast<int>(device.port), Call::kQueryPort);
  if (number != 0) return number;
  if (port != 1) return darwin::kInvalid;
  // A program of an older header has less room: what it does not know is left alone.
  verbs::PortAttr all{};
  fill_port(device, all);
  std::memcpy(attributes, &all, offsetof(verbs::PortAttr, port_cap_flags2));
  return 0;
}

VERBS_API int ibv_query_gid(Context* context, std::uint8_t port, int index, verbs::Gid* gid) {
  const EmulatedDevice& device = *static_cast<EmulatedContext*>(context)->emulated;
  const int number = hook(device.store(), nullptr, static_cast<int>(device.port), Call::kQueryGid);
  if (number == 0 && port == 1 && index >= 0 && index < static_cast<int>(kGidsMax)) {
    *gid = bytes_of(entry_at(device.shared(), static_cast<std::size_t>(index)));
    return 0;
  }
  errno = number != 0 ? number : darwin::kInvalid;
  return -1;
}

VERBS_API int ibv_query_pkey(Context*, std::uint8_t port, int index, std::uint16_t* pkey) {
  if (port != 1 || index != 0) return darwin::kInvalid;
  *pkey = 0xffff;
  return 0;
}

// --- which kind of GID an index has, for RoCE

struct GidEntryTold {
  verbs::Gid gid;
  std::uint32_t gid_index;
  std::uint32_t port_num;
  std::uint32_t gid_type;
  std::uint32_t ndev_ifindex;
};

// 0 InfiniBand, 1 RoCE v1, 2 RoCE v2; the table's own number has 0 for either of the first two.
std::uint32_t told_type(const EmulatedDevice& device, const GidEntry& entry) {
  const bool is_roce = device.store().header().profile == Profile::kRoce;
  return is_roce && entry.type == 0 ? 1 : entry.type;
}

VERBS_API int _ibv_query_gid_ex(Context* context, std::uint32_t port, std::uint32_t index,
                                GidEntryTold* told, std::uint32_t, std::size_t bytes) {
  const EmulatedDevice& device = *static_cast<EmulatedContext*>(context)->emulated;
  const int number = hook(device.store(), nullptr, static_cast<int>(device.port), Call::kQueryGid);
  if (number != 0) return number;
  if (port != 1 || index >= kGidsMax || bytes < sizeof(GidEntryTold)) return darwin::kInvalid;
  const GidEntry entry = entry_at(device.shared(), index);
  if (entry.kind == GidKind::kNone) return ENODATA;
  *told = GidEntryTold{bytes_of(entry), index, 1, told_type(device, entry), 0};
  return 0;
}

VERBS_API ssize_t _ibv_query_gid_table(Context* context, GidEntryTold* told, std::size_t most,
                                       std::uint32_t flags, std::size_t bytes) {
  std::size_t found = 0;
  for (std::uint32_t index = 0; index < kGidsMax && found < most; ++index) {
    const int number = _ibv_query_gid_ex(context, 1, index, &told[found], flags, bytes);
    if (number == 0) ++found;
    if (number != 0 && number != ENODATA) return -number;
  }
  return static_cast<ssize_t>(found);
}

// The answer is that of the kernel's file: 0 "IB/RoCE v1", 1 "RoCE v2".
VERBS_API int ibv_query_gid_type(Context* context, std::uint8_t port, unsigned index, int* type) {
  const EmulatedDevice& device = *static_cast<EmulatedContext*>(context)->emulated;
  if (port != 1 || index >= kGidsMax) {
    errno = darwin::kInvalid;
    return -1;
  }
  *type = entry_at(device.shared(), index).type == 2 ? 1 : 0;
  return 0;
}

// There is no directory of kernel files about an emulated device.
VERBS_API int ibv_read_sysfs_file(const char*, const char*, char*, std::size_t) { return -1; }

VERBS_API int ibv_fork_init() { return 0; }

}  // namespace standfast::emulator
