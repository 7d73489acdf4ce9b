#include "core/fabric/verbs/device.h"

#include <algorithm>
#include <cerrno>
#include <memory>

#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {
namespace {

// The library's list of devices, freed at the end: devices opened from it stay open.
class DeviceList {
 public:
  explicit DeviceList(const Library& library) : library_(library) {
    errno = 0;
    devices_ = library.get_device_list(&count_);
    error_ = devices_ == nullptr ? errno : 0;
    if (devices_ == nullptr) count_ = 0;
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (devices_ != nullptr) library_.free_device_list(devices_);
  }

  Device* const* begin() const { return devices_; }
  Device* const* end() const { return devices_ + count_; }
  int count() const { return count_; }
  int error() const { return error_; }

 private:
  const Library& library_;
  Device** devices_ = nullptr;
  int count_ = 0;
  int error_ = 0;
};

Context* open_context(const Library& library, Device* device, const std::string& name) {
  errno = 0;
  Context* context = library.open_device(device);
  if (context != nullptr) return context;
  Trouble trouble = refused(name, "open the device", "ibv_open_device", errno);
  trouble.code = "open_failed";
  throw VerbsError(std::move(trouble));
}

VerbsError no_devices(const DeviceList& list) {
  const std::string why =
      list.error() == 0 ? "" : " (ibv_get_device_list: " + number_text(list.error()) + ")";
  return VerbsError({"no_devices", "RDMA is not available: the verbs library lists no device" + why,
                     "Thunderbolt 5 Macs: switch RDMA on once, by `rdma_ctl enable` in Recovery; "
                     "others have no RDMA over Thunderbolt",
                     "", list.error()});
}

GidEntry gid_entry(const Library& library, Context* context, int port, int index, int* error) {
  GidEntry entry;
  entry.index = index;
  GidEntryEx found{};
  if (library.query_gid_ex != nullptr &&
      library.query_gid_ex(context, static_cast<std::uint32_t>(port),
                           static_cast<std::uint32_t>(index), &found, 0, sizeof found) == 0) {
    entry.gid = found.gid;
    if (found.gid_type <= 2) entry.type = static_cast<GidType>(found.gid_type);
    return entry;
  }
  // An index without an entry is refused, or zero: the caller leaves zeroes out.
  errno = 0;
  const int refused =
      library.query_gid(context, static_cast<std::uint8_t>(port), index, &entry.gid);
  if (refused != 0) {
    entry.gid = Gid{};
    *error = errno != 0 ? errno : std::max(refused, 0);
  }
  return entry;
}

}  // namespace

int mtu_bytes(Mtu mtu) {
  const int code = static_cast<int>(mtu);
  return code >= 1 && code <= 5 ? 128 << code : 0;
}

double link_gbit_per_s(int speed_code, int width_code) {
  double lane = 0;
  switch (speed_code) {
    case 1: lane = 2.5; break;
    case 2: lane = 5; break;
    case 4:
    case 8: lane = 10; break;
    case 16: lane = 14; break;
    case 32: lane = 25; break;
    case 64: lane = 50; break;
    case 128: lane = 100; break;
    default: return 0;
  }
  switch (width_code) {
    case 1: return lane;
    case 2: return 4 * lane;
    case 4: return 8 * lane;
    case 8: return 12 * lane;
    case 16: return 2 * lane;
    default: return 0;
  }
}

std::vector<DeviceInfo> list_devices(const Library& library) {
  const DeviceList list(library);
  if (list.count() == 0) throw no_devices(list);
  // Not the caller's pointer, but one that does not own it.
  const std::shared_ptr<const Library> shared(&library, [](const Library*) {});
  std::vector<DeviceInfo> devices;
  for (Device* device : list) {
    DeviceInfo info;
    info.name = library.get_device_name(device);
    info.transport = device->transport_type;
    try {
      const Transport transport = info.transport;
      info = OpenDevice(shared, info.name).describe();
      info.transport = transport;
    } catch (const VerbsError& error) {
      info.trouble = error.what();
    }
    devices.push_back(std::move(info));
  }
  return devices;
}

OpenDevice::OpenDevice(std::shared_ptr<const Library> library, const std::string& name)
    : library_(std::move(library)), name_(name) {
  const DeviceList list(*library_);
  if (list.count() == 0) throw no_devices(list);
  std::string known;
  for (Device* device : list) {
    const char* found = library_->get_device_name(device);
    if (name == found) {
      context_ = open_context(*library_, device, name);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(found);
  }
  throw VerbsError({"no_such_device", "there is no device " + name + " here, but " + known,
                    "names can change at each boot: see `standfast devices`, and the device file",
                    name, 0});
}

OpenDevice::~OpenDevice() {
  if (context_ != nullptr) library_->close_device(context_);
}

DeviceInfo OpenDevice::describe() const {
  DeviceAttr attr{};
  const int error = library_->query_device(context_, &attr);
  if (error != 0) {
    throw VerbsError(refused(name_, "query the device", "ibv_query_device", error));
  }
  DeviceInfo info;
  info.name = name_;
  info.transport = context_->device->transport_type;
  info.queue_pairs = attr.max_qp;
  info.regions = attr.max_mr;
  info.region_bytes_max = attr.max_mr_size;
  for (int number = 1; number <= attr.phys_port_cnt; ++number) info.ports.push_back(port(number));
  return info;
}

PortInfo OpenDevice::port(int number) const {
  PortAttr attr{};
  const int error = library_->query_port(context_, static_cast<std::uint8_t>(number), &attr);
  if (error != 0) throw VerbsError(refused(name_, "query the port", "ibv_query_port", error));
  PortInfo info;
  info.number = number;
  info.state = attr.state;
  info.layer = attr.link_layer;
  info.mtu = attr.active_mtu;
  info.lid = attr.lid;
  info.gbit_per_s = link_gbit_per_s(attr.active_speed, attr.active_width);
  constexpr int kGidsMax = 256;
  for (int index = 0; index < std::min(attr.gid_tbl_len, kGidsMax); ++index) {
    const GidEntry entry = gid_entry(*library_, context_, number, index, &info.gid_error);
    if (!is_zero(entry.gid)) info.gids.push_back(entry);
  }
  return info;
}

PortState OpenDevice::port_state(int number) const {
  PortAttr attr{};
  const int error = library_->query_port(context_, static_cast<std::uint8_t>(number), &attr);
  return error == 0 ? attr.state : PortState::kNop;
}

}  // namespace standfast::verbs
