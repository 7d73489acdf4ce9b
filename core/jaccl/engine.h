// JACCL's operations over the lanes of a group, mesh or ring, message by message as stock JACCL
// sends them. core/group_jaccl.cpp calls it, in the thread of the caller or of a worker; sends and
// receives may run side by side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/fabric/fabric.h"
#include "core/jaccl/exchange.h"
#include "core/jaccl/lane.h"
#include "core/jaccl/layout.h"
#include "core/jaccl/stamp.h"
#include "core/wait/wait.h"

namespace standfast::jaccl {

// What a reduction works on. `count`: elements of the result.
struct Reduction {
  const std::byte* src;
  std::byte* dst;
  std::size_t count;
  DType dtype;
  ReduceOp op;
};

// What both ends of a message must agree on, for stamps.
inline std::uint64_t digest_of(OpKind kind, const Reduction& reduction) {
  return operation_digest(kind, reduction.dtype, reduction.op, reduction.count);
}
inline std::uint64_t digest_of_bytes(OpKind kind, std::size_t bytes) {
  return operation_digest(kind, DType::kUInt8, ReduceOp::kSum, bytes);
}

class Engine {
 public:
  // `lanes`: for a mesh one per peer, by rank; for a ring those to the left, then those to the
  // right, cable by cable.
  Engine(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Of all ranks. dst may be src.
  virtual Outcome all_reduce(Waiter& waiter, const Reduction& reduction) = 0;
  // src has one block of dst's size per rank; apart from dst.
  virtual Outcome reduce_scatter(Waiter& waiter, const Reduction& reduction) = 0;
  // dst has one block of `bytes` per rank; src may be this rank's.
  virtual Outcome all_gather(Waiter& waiter, const std::byte* src, std::byte* dst,
                             std::size_t bytes) = 0;
  virtual Outcome send(Waiter& waiter, int peer, const std::byte* src, std::size_t bytes) = 0;
  virtual Outcome receive(Waiter& waiter, int peer, std::byte* dst, std::size_t bytes) = 0;
  Outcome barrier(Waiter& waiter);

  // Of the last operation of that half; collectives count as receiving. Asked by the thread that
  // ran it.
  const std::string& trouble(Half half) const { return record(half).trouble; }
  std::size_t bytes_done(Half half) const { return record(half).bytes_done; }
  // Has any rank ever sent anything? Any thread.
  bool has_heard() const { return has_heard_.load(std::memory_order_relaxed); }
  // "rdma rdma_en5 (10.0.0.1) to 10.0.0.2", of the lanes to a peer.
  std::string link(int peer) const;

 protected:
  const Layout& layout() const { return layout_; }
  Lane& lane(std::size_t index) { return *lanes_[index]; }
  std::size_t lane_count() const { return lanes_.size(); }
  std::byte* scratch(std::size_t bytes);
  // Until all messages have gone and come.
  Outcome run(Exchange& exchange, Waiter& waiter, Half half);
  void begin(Half half) { record(half) = {}; }
  std::size_t note_received(std::size_t bytes) {
    records_[0].bytes_done += bytes;
    has_heard_.store(true, std::memory_order_relaxed);
    return bytes;
  }

 private:
  // By half, written by its holder.
  struct Past {
    std::string trouble;
    std::size_t bytes_done = 0;
  };
  Past& record(Half half) { return records_[half == Half::kReceiving ? 0 : 1]; }
  const Past& record(Half half) const { return records_[half == Half::kReceiving ? 0 : 1]; }

  const Layout layout_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::byte> scratch_;
  Past records_[2];
  // Written by the receiving half, read by either. Relaxed: it only lengthens a limit.
  std::atomic<bool> has_heard_{false};
};

std::unique_ptr<Engine> make_engine(const Layout& layout, std::vector<std::unique_ptr<Lane>> lanes);

}  // namespace standfast::jaccl
