// The devices of this host: what they say about themselves, and one of them opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/fabric/verbs/gid.h"
#include "core/fabric/verbs/library.h"

namespace standfast::verbs {

struct PortInfo {
  int number = 0;
  PortState state = PortState::kNop;
  LinkLayer layer = LinkLayer::kUnspecified;
  Mtu mtu = Mtu::k1024;
  int lid = 0;
  double gbit_per_s = 0;  // 0: unknown
  std::vector<GidEntry> gids;
  int gid_error = 0;  // what the last refused query of an entry said; of an empty one it may
};

struct DeviceInfo {
  std::string name;
  Transport transport = Transport::kUnknown;
  int queue_pairs = 0;
  int regions = 0;
  std::size_t region_bytes_max = 0;
  std::vector<PortInfo> ports;
  std::string trouble;  // why nothing more is known of it, or ""
};

int mtu_bytes(Mtu mtu);
// Speed and width as the port attributes code them; 0 for codes that are none. Pure.
double link_gbit_per_s(int speed_code, int width_code);

// All devices. Throws VerbsError: no_devices.
std::vector<DeviceInfo> list_devices(const Library& library);

// An opened device. Used by one thread at a time, but for port_state().
class OpenDevice {
 public:
  // Throws VerbsError: no_such_device, open_failed.
  OpenDevice(std::shared_ptr<const Library> library, const std::string& name);
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;
  ~OpenDevice();

  const Library& library() const { return *library_; }
  const std::string& name() const { return name_; }
  Context* context() const { return context_; }
  // As it is now: addresses come and go while a program runs. Throws VerbsError: call_failed.
  DeviceInfo describe() const;
  PortInfo port(int number) const;
  // kNop if the device does not answer any more.
  PortState port_state(int number) const;

 private:
  std::shared_ptr<const Library> library_;
  std::string name_;
  Context* context_ = nullptr;
};

}  // namespace standfast::verbs
