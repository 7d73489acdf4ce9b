// An RDMA device in use by a JACCL group: its protection domain, and registered memory for all
// lanes that go over it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/domain.h"
#include "core/jaccl/sizes.h"

namespace standfast::jaccl {

// A lane's memory for one direction: four messages of the largest size, or more of smaller ones.
inline constexpr std::size_t kHalfBytes = 4 * kLargestMessage;

class Port {
 public:
  // Compares the need with what the device offers before it makes anything. Throws VerbsError.
  Port(std::shared_ptr<const verbs::Library> library, const std::string& device, int number,
       int lanes);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  // The lanes are gone. Apple's stack wants memory released before the domain, and that before the
  // device.
  ~Port();

  const verbs::Library& library() const { return device_.library(); }
  const verbs::OpenDevice& device() const { return device_; }
  const std::string& name() const { return device_.name(); }
  int number() const { return number_; }
  bool is_thunderbolt() const { return transport_ == verbs::Transport::kThunderbolt; }
  verbs::Pd* pd() const { return pd_; }
  std::uint32_t key() const { return region_->lkey; }
  // The next lane's memory: 2 * kHalfBytes. Each lane asks once.
  std::byte* next_share();

 private:
  void check_offer(const verbs::DeviceInfo& info) const;
  void destroy();

  verbs::OpenDevice device_;
  const int number_;
  const int lanes_;
  int shares_ = 0;
  verbs::Transport transport_ = verbs::Transport::kUnknown;
  std::unique_ptr<verbs::Slab> slab_;
  verbs::Pd* pd_ = nullptr;
  verbs::Mr* region_ = nullptr;
};

}  // namespace standfast::jaccl
