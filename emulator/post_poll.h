// The calls that programs reach through the context instead of by name.
#pragma once

#include "core/fabric/verbs/abi.h"

namespace standfast::emulator {

int poll_completions(verbs::Cq* queue, int entries_max, verbs::Wc* completions);
int request_notification(verbs::Cq* queue, int solicited_only);
int post_sends(verbs::Qp* pair, verbs::SendWr* request, verbs::SendWr** bad_request);
int post_receives(verbs::Qp* pair, verbs::RecvWr* request, verbs::RecvWr** bad_request);

}  // namespace standfast::emulator
