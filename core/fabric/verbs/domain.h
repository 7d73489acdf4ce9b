// A device in use by this rank: its protection domain, completion queues, and one registered slab
// of memory for all rails that go over it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/message.h"

namespace standfast::verbs {

// Receives for data, by size. Of the small ones some more are kept for messages that tell of room.
inline constexpr int kRoom[kSizes] = {64, 8};
inline constexpr int kReserve = 8;
inline constexpr int kSendSlots[kSizes] = {64 + kReserve, 4};
inline constexpr int kReceiveSlots[kSizes] = {kRoom[0] + kReserve, kRoom[1]};

// What a rail needs of the slab.
constexpr std::size_t rail_bytes(bool has_large) {
  std::size_t bytes = 0;
  for (const Size size : {Size::kSmall, Size::kLarge}) {
    const int at = static_cast<int>(size);
    if (size == Size::kLarge && !has_large) continue;
    bytes += static_cast<std::size_t>(kSendSlots[at] + kReceiveSlots[at]) * message_bytes(size);
  }
  return bytes;
}

// Pages of this process, which its forked children do not have.
class Slab {
 public:
  // Throws SystemError.
  explicit Slab(std::size_t bytes);
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab();
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Takes pages out of what a forked child inherits, where the system can: a device writes to them.
void keep_from_children(void* memory, std::size_t bytes);

class Domain {
 public:
  struct Use {
    std::string device;
    int port = 1;
    int rails = 1;
  };
  // Computes what the rails need before it makes anything. Throws VerbsError.
  Domain(std::shared_ptr<const Library> library, const Use& use);
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;
  // The rails are gone; what they used goes in the order that Apple's stack wants: memory, queues,
  // domain, device.
  ~Domain();

  const Library& library() const { return device_.library(); }
  const OpenDevice& device() const { return device_; }
  const std::string& name() const { return device_.name(); }
  int port() const { return port_; }
  bool has_large() const { return has_large_; }
  bool is_thunderbolt() const { return transport_ == Transport::kThunderbolt; }
  Pd* pd() const { return pd_; }
  std::uint32_t key() const { return mr_->lkey; }
  // A rail's share of the slab, and its completion queue. Each rail asks once.
  std::byte* next_share();
  Cq* new_queue(int entries);

 private:
  void destroy();

  OpenDevice device_;
  const int port_;
  const int rails_;
  Transport transport_ = Transport::kUnknown;
  bool has_large_ = false;
  int shares_ = 0;
  std::unique_ptr<Slab> slab_;
  Pd* pd_ = nullptr;
  Mr* mr_ = nullptr;
  std::vector<Cq*> queues_;
};

}  // namespace standfast::verbs
