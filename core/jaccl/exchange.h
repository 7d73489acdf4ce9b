// The messages of one operation, over all lanes at once: fills and posts what can go out, takes
// what has come, in one loop that never blocks. The thread that runs the operation calls it through
// the wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/jaccl/lane.h"
#include "core/wait/wait.h"

namespace standfast::jaccl {

class Exchange {
 public:
  // `operation`: the digest of what both ends are in.
  Exchange(std::size_t message, std::uint64_t operation)
      : message_(message), operation_(operation) {}

  // How many bytes of a frame were used; nothing: not now.
  using Used = std::optional<std::size_t>;
  // Writes message `index` to `to`; not now: what belongs there is not known yet.
  using Fill = std::function<Used(std::size_t index, std::byte* to)>;
  // Makes use of message `index`; not now: it is not yet its turn.
  using Take = std::function<Used(std::size_t index, const std::byte* from)>;
  // Each half of a lane at most once. Returns the flow's number, for sent() and taken().
  std::size_t send(Lane& lane, std::size_t count, Fill fill);
  std::size_t receive(Lane& lane, std::size_t count, Take take);

  // How many messages have left the memory they came from; how many were taken.
  std::size_t sent(std::size_t flow) const { return outgoing_[flow].next; }
  std::size_t taken(std::size_t flow) const { return incoming_[flow].next; }

  // Moves on what can be moved. `quiet`: for how long nothing has.
  Polled step(Nanos quiet);
  // After kBroken or kMismatch: what is wrong.
  const std::string& trouble() const { return trouble_; }

 private:
  // A quiet lane's port is looked at so often: the device may be slow to answer.
  static constexpr Nanos kPortsAfter = 200 * kMillisecond;

  struct Outgoing {
    Lane* lane;
    std::size_t count;
    Fill fill;
    std::size_t next = 0;
    bool is_done() const { return next == count && lane->unsent() == 0; }
  };
  struct Incoming {
    Lane* lane;
    std::size_t count;
    Take take;
    std::size_t next = 0;
    bool is_done() const { return next == count; }
  };

  bool expect_all();
  bool send_all();
  bool take_all();
  bool fill_next(Outgoing& flow);
  bool take_from(Incoming& flow);
  void check_stamp(const Lane& lane, std::size_t used);
  bool find_fault(Polled& polled);
  bool find_dead_port(Polled& polled);
  int awaited() const;

  const std::size_t message_;
  const std::uint64_t operation_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::string trouble_;
  int out_of_step_ = -1;           // the rank whose stamp is wrong
  Nanos ports_due_ = kPortsAfter;  // in quiet time
};

}  // namespace standfast::jaccl
