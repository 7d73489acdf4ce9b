// What this process has open on an emulated fabric: devices, contexts, regions and queue pairs.
// Each object begins as the verbs API shows it to programs.
//
// Locks are this process's own, and taken in this order: Library::mutex,
// CompletionQueue::members_mutex, QueuePair::mutex, CompletionQueue::mutex.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/fabric/verbs/abi.h"
#include "emulator/faults.h"
#include "emulator/ring_queue.h"
#include "emulator/store.h"

namespace standfast::emulator {

// A fabric as one host sees it. Never freed: programs keep pointers to its devices.
struct FabricView {
  std::unique_ptr<Store> store;
  std::string host;
  std::vector<std::unique_ptr<struct EmulatedDevice>> devices;
};

struct EmulatedDevice : verbs::Device {
  FabricView* fabric;
  std::size_t port;

  Store& store() const { return *fabric->store; }
  Port& shared() const { return store().port(port); }
  std::string name_at_host() const { return store().port_name(port); }
};

// Behind the fields that we name, a system's header has others (pthread objects, whose sizes
// differ). They read as zero.
template <typename Base, std::size_t kBytes>
struct Padded : Base {
  std::array<std::byte, kBytes - sizeof(Base)> foreign{};
};

struct EmulatedContext : Padded<verbs::Context, 512> {
  EmulatedDevice* emulated;
  int async_write_fd;
  int pid;  // of the process that opened it; a forked child leaves it alone
  std::atomic<int> children{0};
  std::atomic<bool> was_active;  // the port, when the progress thread last looked
};

struct ProtectionDomain : verbs::Pd {
  int budget_place;
  std::atomic<int> regions{0};
  std::atomic<int> queue_pairs{0};
};

struct MemoryRegion : verbs::Mr {
  int budget_place;
};

struct CompletionChannel : verbs::CompChannel {
  int write_fd;
};

struct CompletionQueue : Padded<verbs::Cq, 256> {
  std::mutex members_mutex;  // guards members
  std::vector<struct QueuePair*> members;
  std::mutex mutex;  // guards completions, armed, overrun
  RingQueue<verbs::Wc> completions;
  bool armed = false;
  bool overrun = false;
  std::atomic<std::size_t> waiting{0};  // completions.size(), to be looked at without the lock
};

inline constexpr std::size_t kGatherMax = 4;

struct Request {
  std::uint64_t wr_id = 0;
  std::uint32_t bytes = 0;
  std::uint32_t entries = 0;
  std::array<verbs::Sge, kGatherMax> gather{};
};

struct SendRequest : Request {
  bool signaled = false;
  bool admitted = false;  // the receiver has a receive for it
  bool lose = false;
  bool duplicate = false;
  bool reorder = false;
  bool has_immediate = false;
  std::uint32_t immediate = 0;
  std::uint32_t frames = 0;  // what it takes of the window
  std::uint32_t written = 0;
  std::int64_t not_before_ns = 0;
  std::int64_t corrupt_byte = -1;
  std::unique_ptr<std::byte[]> copy;  // instead of the program's memory
};

struct ReceiveRequest : Request {
  std::uint32_t frames = 0;
};

// The other end of a queue pair, from RTR on.
struct Peer {
  Endpoint* endpoint = nullptr;
  const std::byte* arena = nullptr;
  std::uint32_t incarnation = 0;
  std::uint32_t cable_epoch = 0;
};

// Positions in the own arena, counted on for ever; a piece's place is the position modulo its size.
struct Arena {
  std::byte* memory = nullptr;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::array<std::uint64_t, kDescriptors> ends{};  // of each piece under way
};

struct QueuePair : Padded<verbs::Qp, 512> {
  std::mutex mutex;  // guards all that follows

  EmulatedDevice* device;
  std::size_t slot;
  Endpoint* own;
  Cable* cable;  // null: nothing is plugged in
  verbs::QpAttr attributes{};
  verbs::QpCap caps{};
  bool signal_all;
  int pid;

  Peer peer;

  RingQueue<SendRequest> sends;
  std::optional<SendRequest> held;  // it goes after the next one
  std::int64_t held_until_ns = 0;
  std::uint64_t send_frames = 0;
  std::uint64_t admitted = 0;       // messages for which the receiver had a receive
  std::uint64_t posted_seen = 0;    // its word, when last looked at
  std::uint64_t written = 0;        // pieces
  std::uint64_t consumed_seen = 0;  // its word, when last looked at
  Arena arena;
  std::int64_t blocked_since_ns = 0;  // RC: nobody answers, or has a receive
  std::int64_t peer_checked_ns = 0;
  bool peer_alive = true;

  RingQueue<ReceiveRequest> receives;
  std::uint64_t receive_frames = 0;
  std::uint64_t posted = 0;
  std::uint64_t taken = 0;     // pieces
  std::uint32_t received = 0;  // bytes of the message that is being received
  verbs::WcStatus receive_status = verbs::WcStatus::kSuccess;

  // Counted up by the program's calls: while it grows, the progress thread has nothing to do here.
  std::atomic<std::uint64_t> touched{0};
  std::uint64_t touched_before = 0;  // the progress thread's own

  Store& store() const { return device->store(); }
  bool is_reliable() const { return qp_type == verbs::QpType::kRc; }
  void count(Count what, std::uint64_t more = 1) {
    std::atomic<std::uint64_t>& word = own->counts[static_cast<std::size_t>(what)];
    word.store(word.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

inline std::uint32_t frames_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>(bytes == 0 ? 1 : (bytes + kFrameBytes - 1) / kFrameBytes);
}

// All of this process. Never freed: the progress thread may outlive static objects.
struct Library {
  std::mutex mutex;  // guards all that follows
  std::vector<std::unique_ptr<FabricView>> fabrics;
  std::vector<EmulatedContext*> contexts;
  std::vector<QueuePair*> queue_pairs;
  int progress_pid = 0;  // the process that has a progress thread
};

Library& library();

// Registered memory. A region is found under the lock of the queue pair that uses it;
// remove_region() comes back when none uses it any more.
bool add_region(MemoryRegion& region);
void remove_region(MemoryRegion& region);
const MemoryRegion* find_region(std::uint32_t key);

}  // namespace standfast::emulator
