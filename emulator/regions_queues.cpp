// Protection domains, memory regions and completion queues. Called by programs, from any thread.
#include <algorithm>

#include "emulator/events.h"
#include "emulator/exports.h"
#include "emulator/objects.h"
#include "emulator/owner.h"

namespace standfast::emulator {
namespace {

using verbs::Context;
using verbs::Cq;
using verbs::Mr;
using verbs::Pd;

constexpr int kCompletionsMax = 65536;

EmulatedContext& emulated(Context* context) { return *static_cast<EmulatedContext*>(context); }

int hook_at(const EmulatedContext& context, Call call) {
  const EmulatedDevice& device = *context.emulated;
  return hook(device.store(), nullptr, static_cast<int>(device.port), call);
}

void report(const EmulatedContext& context, const char* call, const std::string& what) {
  context.emulated->store().report(std::string(call) + " " + context.emulated->name_at_host() +
                                   ": " + what);
}

void give_back(Budget& budget, int place) {
  budget.owners[static_cast<std::size_t>(place)].store(0, std::memory_order_release);
}

Mr* register_memory(Pd* base, void* address, std::size_t bytes, int access) {
  auto& domain = *static_cast<ProtectionDomain*>(base);
  EmulatedContext& context = emulated(domain.context);
  if (const int number = hook_at(context, Call::kRegMr); number != 0) return refuse<Mr>(number);
  constexpr int kRemote = verbs::kAccessRemoteWrite;
  const bool is_writable = (access & verbs::kAccessLocalWrite) != 0;
  if (bytes == 0 || ((access & kRemote) != 0 && !is_writable)) return refuse<Mr>(darwin::kInvalid);
  Budget& budget = context.emulated->shared().memory_regions;
  const int place = claim_one(budget);
  if (place < 0) return refuse<Mr>(darwin::kNoMemory);
  auto* region = new MemoryRegion{};
  region->context = domain.context;
  region->pd = base;
  region->addr = address;
  region->length = bytes;
  region->budget_place = place;
  if (!add_region(*region)) {
    give_back(budget, place);
    delete region;
    return refuse<Mr>(darwin::kNoMemory);
  }
  ++domain.regions;
  return region;
}

}  // namespace

VERBS_API Pd* ibv_alloc_pd(Context* base) {
  EmulatedContext& context = emulated(base);
  if (const int number = hook_at(context, Call::kAllocPd); number != 0) return refuse<Pd>(number);
  Port& port = context.emulated->shared();
  // Apple's driver gives none where nothing is at the other end of the cable.
  const bool is_apple = context.emulated->store().header().profile == Profile::kApple;
  if (is_apple && !context.emulated->store().is_active(port)) return refuse<Pd>(darwin::kNxio);
  const int place = claim_one(port.protection_domains);
  if (place < 0) return refuse<Pd>(darwin::kNoMemory);
  auto* domain = new ProtectionDomain{};
  domain->context = base;
  domain->handle = static_cast<std::uint32_t>(place);
  domain->budget_place = place;
  ++context.children;
  return domain;
}

VERBS_API int ibv_dealloc_pd(Pd* base) {
  auto* domain = static_cast<ProtectionDomain*>(base);
  EmulatedContext& context = emulated(domain->context);
  if (const int number = hook_at(context, Call::kDeallocPd); number != 0) return number;
  if (domain->queue_pairs > 0 || domain->regions > 0) {
    report(context, "dealloc_pd",
           std::to_string(domain->queue_pairs) + " queue pairs and " +
               std::to_string(domain->regions) + " memory regions still belong to it");
    return darwin::kBusy;
  }
  give_back(context.emulated->shared().protection_domains, domain->budget_place);
  --context.children;
  delete domain;
  return 0;
}

VERBS_API Mr* ibv_reg_mr(Pd* domain, void* address, std::size_t bytes, int access) {
  return register_memory(domain, address, bytes, access);
}

// Programs of other headers reach these; addresses in work requests are the program's own here.
VERBS_API Mr* ibv_reg_mr_iova(Pd* domain, void* address, std::size_t bytes, std::uint64_t iova,
                              int access) {
  if (iova != reinterpret_cast<std::uintptr_t>(address)) return refuse<Mr>(darwin::kInvalid);
  return register_memory(domain, address, bytes, access);
}

VERBS_API Mr* ibv_reg_mr_iova2(Pd* domain, void* address, std::size_t bytes, std::uint64_t iova,
                               unsigned access) {
  return ibv_reg_mr_iova(domain, address, bytes, iova, static_cast<int>(access));
}

VERBS_API int ibv_dereg_mr(Mr* base) {
  auto* region = static_cast<MemoryRegion*>(base);
  EmulatedContext& context = emulated(region->context);
  auto& domain = *static_cast<ProtectionDomain*>(region->pd);
  if (const int number = hook_at(context, Call::kDeregMr); number != 0) return number;
  if (domain.queue_pairs > 0) {
    report(context, "dereg_mr",
           std::to_string(domain.queue_pairs) + " queue pairs that may use it are still there");
  }
  remove_region(*region);
  give_back(context.emulated->shared().memory_regions, region->budget_place);
  --domain.regions;
  delete region;
  return 0;
}

VERBS_API Cq* ibv_create_cq(Context* base, int entries, void* cq_context,
                            verbs::CompChannel* channel, int) {
  EmulatedContext& context = emulated(base);
  if (const int number = hook_at(context, Call::kCreateCq); number != 0) return refuse<Cq>(number);
  if (entries < 1 || entries > kCompletionsMax) return refuse<Cq>(darwin::kInvalid);
  auto* queue = new CompletionQueue{};
  queue->context = base;
  queue->channel = channel;
  queue->cq_context = cq_context;
  queue->cqe = entries;
  queue->completions = RingQueue<verbs::Wc>(static_cast<std::size_t>(entries));
  if (channel != nullptr) ++channel->refcnt;
  ++context.children;
  return queue;
}

VERBS_API int ibv_destroy_cq(Cq* base) {
  auto* queue = static_cast<CompletionQueue*>(base);
  EmulatedContext& context = emulated(queue->context);
  if (const int number = hook_at(context, Call::kDestroyCq); number != 0) return number;
  {
    const std::lock_guard lock(queue->members_mutex);
    if (!queue->members.empty()) {
      report(context, "destroy_cq",
             std::to_string(queue->members.size()) + " queue pairs still use it");
      return darwin::kBusy;
    }
  }
  if (queue->channel != nullptr) --queue->channel->refcnt;
  --context.children;
  delete queue;
  return 0;
}

}  // namespace standfast::emulator
