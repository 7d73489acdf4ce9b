// What this machine allows: the limits that any collective library on it lives with. Called by
// `standfast bench --limits` only; runs in two threads of its own, and takes both cores while it
// does.
#pragma once

#include <vector>

namespace standfast {

enum class Limit {
  kCopy,         // memcpy of 64 MiB: bytes copied per second
  kCopyCached,   // memcpy of 256 KiB, which stay in L2
  kCopyOnTwo,    // memcpy of 64 MiB on two cores at once, sum of both
  kAdd,          // float32 a += b, 64 MiB: bytes of b per second
  kSpin,         // a word in memory, from core to core: seconds, one way
  kWakeUp,       // a thread asleep in read(), on another core: seconds until it runs
  kTcpBlocking,  // 8 bytes over loopback TCP: seconds, one way
  kTcpPolling,   // the same, the receiver never sleeping
  kTcpStream,    // loopback TCP, writes of 1 MiB: bytes per second
};
inline constexpr int kLimitCount = 9;

// Every sample, in the order measured. Empty where this process has one core only and the limit is
// between two. Throws SystemError where the system refuses.
std::vector<double> measure_limit(Limit limit);

// Pins the calling thread to the n-th core that this process may use; false if there are fewer, or
// the system knows no pinning.
bool pin_to_core(int n);

}  // namespace standfast
