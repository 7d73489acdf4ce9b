#include "core/fabric/verbs/domain.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "core/fabric/verbs/budget.h"
#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {
namespace {

// They say 11, and refuse the eleventh: so users report.
constexpr int kThunderboltQueuePairs = 10;

}  // namespace

Slab::Slab(std::size_t bytes) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("mmap of the memory for RDMA", errno);
  data_ = static_cast<std::byte*>(memory);
  keep_from_children(memory, bytes);
}

Slab::~Slab() { munmap(data_, bytes_); }

Domain::Domain(std::shared_ptr<const Library> library, const Use& use)
    : device_(std::move(library), use.device), port_(use.port), rails_(use.rails) {
  const DeviceInfo info = device_.describe();
  transport_ = info.transport;
  if (use.port > static_cast<int>(info.ports.size())) {
    throw VerbsError({"no_such_port",
                      name() + " has " + std::to_string(info.ports.size()) +
                          " ports, and no port " + std::to_string(use.port),
                      "see the device file", name(), 0});
  }
  const int queue_pairs =
      is_thunderbolt() ? std::min(info.queue_pairs, kThunderboltQueuePairs) : info.queue_pairs;
  const DeviceOffer offer{name(), queue_pairs, info.regions, info.region_bytes_max};
  const auto rails = static_cast<std::size_t>(rails_);
  has_large_ = need_of(rails_, rails * rail_bytes(true), offer).has_large;
  try {
    errno = 0;
    pd_ = device_.library().alloc_pd(device_.context());
    if (pd_ == nullptr) {
      throw VerbsError(no_domain(name(), device_.port_state(port_), errno));
    }
    slab_ = std::make_unique<Slab>(rails * rail_bytes(has_large_));
    // Apple's stack refuses memory without the remote rights, though nobody makes use of them.
    const int access = kAccessLocalWrite | kAccessRemoteRead | kAccessRemoteWrite;
    errno = 0;
    mr_ = device_.library().reg_mr(pd_, slab_->data(), slab_->bytes(), access);
    if (mr_ == nullptr) {
      Trouble trouble = refused(name(), "register memory", "ibv_reg_mr", errno);
      trouble.code = "no_memory_region";
      throw VerbsError(std::move(trouble));
    }
  } catch (...) {
    destroy();
    throw;
  }
}

Domain::~Domain() { destroy(); }

void Domain::destroy() {
  const Library& calls = device_.library();
  if (mr_ != nullptr) calls.dereg_mr(mr_);
  for (Cq* queue : queues_) calls.destroy_cq(queue);
  if (pd_ != nullptr) calls.dealloc_pd(pd_);
}

std::byte* Domain::next_share() {
  SF_CHECK(shares_ < rails_);
  return slab_->data() + static_cast<std::size_t>(shares_++) * rail_bytes(has_large_);
}

Cq* Domain::new_queue(int entries) {
  errno = 0;
  Cq* queue = library().create_cq(device_.context(), entries, nullptr, nullptr, 0);
  if (queue == nullptr) {
    Trouble trouble = refused(name(), "create a completion queue", "ibv_create_cq", errno);
    trouble.code = "no_completion_queue";
    throw VerbsError(std::move(trouble));
  }
  queues_.push_back(queue);
  return queue;
}

}  // namespace standfast::verbs
