// Two wires back to back in one process, over every fabric: the factories of the wire tests, and
// what wait/ does between two attempts.
#pragma once

#include <poll.h>

#include <memory>
#include <utility>

#include "core/base/bell.h"
#include "core/fabric/fabric.h"
#include "core/fabric/shm/segment.h"
#include "core/fabric/shm/wire.h"
#include "core/fabric/tcp/wire.h"
#include "tests/core/support.h"
#include "tests/core/verbs_wires.h"

namespace standfast::test {

// `a` is on rank 0 and leads to rank 1, `b` the other way round.
struct WirePair {
  std::unique_ptr<Wire> a;
  std::unique_ptr<Wire> b;
};

// Both ends share one mapping, so that ThreadSanitizer sees them use the same memory.
inline std::shared_ptr<Mapping> shared_mapping() {
  const NamedSegment made = make_segment();
  unlink_segment(made.name);
  return std::make_shared<Mapping>(made.fd.get());
}

inline WirePair shm_wires(const std::shared_ptr<Mapping>& mapping) {
  auto [a, b] = socket_pair();
  return {std::make_unique<ShmWire>(1, "shm", std::move(a), mapping, true),
          std::make_unique<ShmWire>(0, "shm", std::move(b), mapping, false)};
}

inline WirePair tcp_wires(std::pair<Fd, Fd> sockets) {
  return {std::make_unique<TcpWire>(1, "tcp", std::move(sockets.first)),
          std::make_unique<TcpWire>(0, "tcp", std::move(sockets.second))};
}

struct Shm {
  static WirePair make() { return shm_wires(shared_mapping()); }
};
struct Tcp {
  static WirePair make() { return tcp_wires(tcp_pair()); }
};
// Hardly a frame's head fits: every transfer is a part of one.
struct TightTcp {
  static WirePair make() { return tcp_wires(tcp_pair(1)); }
};

struct Verbs {
  static WirePair make() { return make(link_pair(1)); }
  static WirePair make(LinkPair links) {
    auto [a, b] = socket_pair();
    return {std::make_unique<VerbsWire>(1, "rdma", std::move(a), std::move(links.a)),
            std::make_unique<VerbsWire>(0, "rdma", std::move(b), std::move(links.b))};
  }
};
// Three cables, and a device that has one queue pair for each.
struct VerbsSmall {
  static WirePair make() {
    Loopback::instance().reset();
    Loopback::instance().queue_pairs_max = 3;
    return Verbs::make(link_pair_as_is(3));
  }
};

// Looks at the descriptor once, as a sleeper that was woken would.
inline void look(Wire& wire, Half half) {
  wire.asleep(half);
  const short events = wire.wakes_by_reading(half) ? POLLIN : POLLOUT;
  pollfd ready = {wire.poll_fd(), events, 0};
  if (poll(&ready, 1, 0) > 0) (void)wire.answer_bell(half);
  wire.awake(half);
}

// One thread plays both ends: repeats an attempt on one of them until it comes to something.
template <class Attempt>
Turn insist(WirePair& wires, Wire& wire, Half half, Attempt attempt) {
  Turn turn = Turn::kNotYet;
  (void)eventually([&] {
    for (Wire* each : {wires.a.get(), wires.b.get()}) {
      if (each != nullptr && each->sending()) (void)each->flush();
    }
    turn = attempt();
    if (turn == Turn::kNotYet) look(wire, half);
    return turn != Turn::kNotYet;
  });
  return turn;
}

// A thread that sleeps at once instead of spinning, so that a wake-up that is lost is missed.
class Sleeper {
 public:
  Sleeper(const Bell& own, const Bell& neighbour) : own_(own), neighbour_(neighbour) {}

  // kNotYet: nobody woke it.
  template <class Attempt>
  Turn until(Wire& wire, Half half, Attempt attempt) {
    for (;;) {
      wire.asleep(half);
      const Turn turn = attempt();
      const bool is_lost = turn == Turn::kNotYet && !sleep(wire, half);
      wire.awake(half);
      if (turn != Turn::kNotYet || is_lost) return turn;
    }
  }

 private:
  bool sleep(Wire& wire, Half half) {
    const short events = wire.wakes_by_reading(half) ? POLLIN : POLLOUT;
    pollfd ready[2] = {{own_.fd(), POLLIN, 0}, {wire.poll_fd(), events, 0}};
    const Nanos span = wire.must_be_polled() ? kMillisecond : kPatience;
    const int count = poll(ready, 2, static_cast<int>(span / kMillisecond));
    if (count == 0) return wire.must_be_polled();
    if (ready[0].revents != 0) own_.silence();
    if (ready[1].revents != 0 && wire.answer_bell(half)) neighbour_.ring();
    return true;
  }

  const Bell& own_;
  const Bell& neighbour_;
};

}  // namespace standfast::test
