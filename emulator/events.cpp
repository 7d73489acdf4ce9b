#include "emulator/events.h"

#include <unistd.h>

#include <cstdint>

#include "emulator/exports.h"

namespace standfast::emulator {
namespace {

// As <infiniband/verbs.h> has it.
struct AsyncEvent {
  union {
    void* object;
    std::int32_t port_num;
  } element;
  std::int32_t event_type;
};
constexpr std::int32_t kPortActive = 9;
constexpr std::int32_t kPortError = 10;

}  // namespace

void tell_port_change(EmulatedContext& context) {
  const Store& store = context.emulated->store();
  if (store.header().profile == Profile::kApple) return;
  const bool is_active = store.is_active(context.emulated->shared());
  if (context.was_active.exchange(is_active) == is_active) return;
  AsyncEvent event{};
  event.element.port_num = 1;
  event.event_type = is_active ? kPortActive : kPortError;
  [[maybe_unused]] const ssize_t told = write(context.async_write_fd, &event, sizeof event);
}

VERBS_API int ibv_get_async_event(verbs::Context* context, AsyncEvent* event) {
  return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

VERBS_API void ibv_ack_async_event(AsyncEvent*) {}

VERBS_API verbs::CompChannel* ibv_create_comp_channel(verbs::Context* context) {
  int ends[2];
  if (!make_channel_pipe(ends)) return nullptr;
  auto* channel = new CompletionChannel{};
  channel->context = context;
  channel->fd = ends[0];
  channel->write_fd = ends[1];
  ++static_cast<EmulatedContext*>(context)->children;
  return channel;
}

VERBS_API int ibv_destroy_comp_channel(verbs::CompChannel* base) {
  auto* channel = static_cast<CompletionChannel*>(base);
  auto& context = *static_cast<EmulatedContext*>(channel->context);
  if (channel->refcnt > 0) {
    context.emulated->store().report("destroy_comp_channel " + context.emulated->name_at_host() +
                                     ": " + std::to_string(channel->refcnt) +
                                     " completion queues still use it");
    return darwin::kBusy;
  }
  close(channel->fd);
  close(channel->write_fd);
  --context.children;
  delete channel;
  return 0;
}

VERBS_API int ibv_get_cq_event(verbs::CompChannel* channel, verbs::Cq** queue, void** cq_context) {
  CompletionQueue* told = nullptr;
  if (read(channel->fd, &told, sizeof told) != sizeof told) return -1;
  *queue = told;
  *cq_context = told->cq_context;
  return 0;
}

// Needed by libraries that wait in destroy_cq until all events are acknowledged; ours does not.
VERBS_API void ibv_ack_cq_events(verbs::Cq*, unsigned) {}

}  // namespace standfast::emulator
