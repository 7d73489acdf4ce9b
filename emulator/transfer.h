// The data path: messages from a program's memory, through the sender's arena in shared memory, to
// the memory of a posted receive. Called by posts, polls and the progress thread, with the queue
// pair's lock held.
#pragma once

#include "emulator/objects.h"

namespace standfast::emulator {

// Moves what can be moved. True: something was.
bool advance(QueuePair& pair);

// Completes the oldest request of each queue with `first`, all others as flushed, and puts the pair
// into the error state.
void fail_pair(QueuePair& pair, verbs::WcStatus first);

// Puts everything back to where a new queue pair is; the peer's connection to it is over.
void reset_pair(QueuePair& pair);

// Copies between a request's gather list and plain memory, `at` bytes into the message. False: a
// region is not registered, or too small.
bool gather(const QueuePair& pair, const SendRequest& request, std::uint32_t at, std::byte* to,
            std::uint32_t bytes);

// Crashes, if the cable was pulled that way.
void crash_if_asked(const QueuePair& pair);

void complete(CompletionQueue& queue, const verbs::Wc& completion);

}  // namespace standfast::emulator
