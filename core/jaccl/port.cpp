#include "core/jaccl/port.h"

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/fabric/verbs/trouble.h"

namespace standfast::jaccl {

using verbs::VerbsError;

Port::Port(std::shared_ptr<const verbs::Library> library, const std::string& device, int number,
           int lanes)
    : device_(std::move(library), device), number_(number), lanes_(lanes) {
  const verbs::DeviceInfo info = device_.describe();
  transport_ = info.transport;
  check_offer(info);
  try {
    errno = 0;
    pd_ = device_.library().alloc_pd(device_.context());
    if (pd_ == nullptr) {
      throw VerbsError(verbs::no_domain(name(), device_.port_state(number_), errno));
    }
    slab_ = std::make_unique<verbs::Slab>(static_cast<std::size_t>(lanes_) * 2 * kHalfBytes);
    // Apple's stack refuses memory without the remote rights, though nobody makes use of them.
    const int access =
        verbs::kAccessLocalWrite | verbs::kAccessRemoteRead | verbs::kAccessRemoteWrite;
    errno = 0;
    region_ = device_.library().reg_mr(pd_, slab_->data(), slab_->bytes(), access);
    if (region_ == nullptr) {
      verbs::Trouble trouble = verbs::refused(name(), "register memory", "ibv_reg_mr", errno);
      trouble.code = "no_memory_region";
      throw VerbsError(std::move(trouble));
    }
  } catch (...) {
    destroy();
    throw;
  }
}

Port::~Port() { destroy(); }

void Port::check_offer(const verbs::DeviceInfo& info) const {
  if (number_ > static_cast<int>(info.ports.size())) {
    throw VerbsError({"no_such_port",
                      name() + " has " + std::to_string(info.ports.size()) +
                          " ports, and no port " + std::to_string(number_),
                      "see the device file", name(), 0});
  }
  if (lanes_ > info.queue_pairs) {
    throw VerbsError({"too_few_queue_pairs",
                      std::to_string(lanes_) + " connections over " + name() + ": needs " +
                          std::to_string(lanes_) + " queue pairs, device offers " +
                          std::to_string(info.queue_pairs),
                      "use fewer ranks per device, or a ring instead of a mesh", name(), 0});
  }
}

void Port::destroy() {
  if (region_ != nullptr) device_.library().dereg_mr(region_);
  if (pd_ != nullptr) device_.library().dealloc_pd(pd_);
}

std::byte* Port::next_share() {
  SF_CHECK(shares_ < lanes_);
  return slab_->data() + static_cast<std::size_t>(shares_++) * 2 * kHalfBytes;
}

}  // namespace standfast::jaccl
