#include "core/control/beacon_linux.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "core/base/error.h"
#include "core/base/thread.h"
#include "core/control/beacon.h"
#include "core/control/sentinel_linux.h"

namespace standfast {
namespace {

// The kernel wakes one of those who wait on a word. Looking again covers one that was woken and
// died of the same cause, and a neighbour that has no beacon.
constexpr Nanos kLookAgainMin = 10 * kMillisecond;
constexpr Nanos kLookAgainMax = 1 * kSecond;
constexpr Nanos kStopAgain = 1 * kMillisecond;

std::size_t memory_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(BeaconSlot); }

// The ranks here in the order in which `rank` looks after them: the next higher first, then around.
std::vector<int> ring_after(int rank, std::vector<int> ranks) {
  std::erase(ranks, rank);
  std::sort(ranks.begin(), ranks.end());
  const auto higher = std::upper_bound(ranks.begin(), ranks.end(), rank);
  std::rotate(ranks.begin(), higher, ranks.end());
  return ranks;
}

class BeaconMemory {
 public:
  BeaconMemory(int fd, int size) : bytes_(memory_bytes(size)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) throw SystemError("mmap of the beacons", errno);
    // A forked child neither holds a beacon nor sees one.
    madvise(memory, bytes_, MADV_DONTFORK);
    slots_ = static_cast<BeaconSlot*>(memory);
  }
  BeaconMemory(const BeaconMemory&) = delete;
  BeaconMemory& operator=(const BeaconMemory&) = delete;
  ~BeaconMemory() { munmap(slots_, bytes_); }
  BeaconWord& word(int rank) const { return slots_[rank].word; }

 private:
  std::size_t bytes_;
  BeaconSlot* slots_;
};

// The thread's list of robust futexes, as the kernel reads it when the thread ends: one entry, the
// rank's own word. It stands in for the C library's, which a thread without robust mutexes does not
// need. Lives in the thread's own memory, where no other process can damage it.
class RobustList {
 public:
  explicit RobustList(BeaconWord& word) {
    const char* entry = reinterpret_cast<const char*>(&entry_);
    head_.list.next = &entry_;
    head_.futex_offset = reinterpret_cast<const char*>(&word) - entry;
    entry_.next = &head_.list;
    std::size_t bytes = 0;
    registered_ = syscall(SYS_get_robust_list, 0, &before_, &bytes) == 0 &&
                  syscall(SYS_set_robust_list, &head_, sizeof head_) == 0;
  }
  RobustList(const RobustList&) = delete;
  RobustList& operator=(const RobustList&) = delete;
  ~RobustList() {
    if (registered_) syscall(SYS_set_robust_list, before_, sizeof head_);
  }
  bool is_registered() const { return registered_; }

 private:
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* before_ = nullptr;
  bool registered_ = false;
};

}  // namespace

Fd open_beacon_memory(const std::string& name, int size) {
  Fd fd(shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) throw SystemError("shm_open(" + name + ")", errno);
  // Takes the pages now: a full /dev/shm is an error here, not a SIGBUS later. All ranks do this.
  int code = EINTR;
  while (code == EINTR) {
    code = posix_fallocate(fd.get(), 0, static_cast<off_t>(memory_bytes(size)));
  }
  if (code == 0) return fd;
  shm_unlink(name.c_str());
  throw SystemError("shared memory for the beacons of " + std::to_string(size) + " ranks", code);
}

struct Beacon::Parts {
  explicit Parts(BeaconConfig given)
      : config(std::move(given)),
        memory(config.memory.get(), config.size),
        neighbours(ring_after(config.rank, config.ranks_here)),
        told(static_cast<std::size_t>(config.size)) {}

  void run() {
    {
      const RobustList list(own());
      // Not earlier than the list: a thread that ends between the two has taken nothing.
      give(list.is_registered() ? static_cast<std::uint32_t>(gettid()) | FUTEX_WAITERS
                                : kBeaconLeft);
      set(started);
      keep_watch();
      give(kBeaconLeft);
    }
    set(ended);
  }

  void keep_watch() {
    Nanos pause = kLookAgainMin;
    while (stopping.load() == 0) {
      const Sight sight = look_around();
      watched.store(sight.word);
      if (stopping.load() != 0) return;
      beacon_wait(*sight.word, sight.seen, sight.incomplete ? pause : kLookAgainMax);
      pause = std::min(2 * pause, kLookAgainMax);
    }
  }

  // What to wait on next. `incomplete`: a rank on the way there does not hold its beacon yet.
  struct Sight {
    const BeaconWord* word;
    std::uint32_t seen;
    bool incomplete;
  };

  // Waits for the next neighbour's word, and looks at all: whoever is woken by a death wakes all.
  Sight look_around() {
    Sight sight = {&stopping, 0, false};
    bool holds = false;
    for (const int rank : neighbours) {
      const BeaconWord& word = memory.word(rank);
      const std::uint32_t seen = word.load(std::memory_order_acquire);
      const BeaconState state = beacon_state(seen);
      if (state == BeaconState::kDied) tell(rank);
      if (holds) continue;
      holds = state == BeaconState::kHeld;
      if (holds) sight = {&word, seen, sight.incomplete};
      if (state == BeaconState::kUntaken && !sight.incomplete) sight = {&word, seen, true};
    }
    return sight;
  }

  void tell(int rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (told[i]) return;
    told[i] = true;
    config.died(rank);
    // The kernel has woken only one; a sentinel waits for the word as well.
    beacon_wake(memory.word(rank));
    for (const int other : neighbours) beacon_wake(memory.word(other));
    beacon_wake(own());
  }

  BeaconWord& own() const { return memory.word(config.rank); }

  void give(std::uint32_t value) const {
    own().store(value, std::memory_order_release);
    beacon_wake(own());
  }

  static void set(BeaconWord& flag) {
    flag.store(1);
    beacon_wake(flag);
  }

  void await_start() {
    while (started.load() == 0) beacon_wait(started, 0, kLookAgainMax);
  }

  // A wake that comes just before the thread sleeps on a neighbour's word is lost: more are sent.
  void stop() {
    set(stopping);
    while (ended.load() == 0) {
      beacon_wake(*watched.load());
      beacon_wait(ended, 0, kStopAgain);
    }
    thread.join();
    sentinel.reset();
  }

  void post_sentinel() {
    if (config.sentinel.empty() || config.links.empty()) return;
    try {
      sentinel = std::make_unique<Sentinel>(config.sentinel, config.memory.get(), config.rank,
                                            config.links, config.last_words);
    } catch (const SystemError& error) {
      sentinel_trouble = error.what();
    }
  }

  BeaconConfig config;
  BeaconMemory memory;
  const std::vector<int> neighbours;
  std::vector<bool> told;  // the thread's own

  // Words that only this process knows. Each is set once, and read in the order in which it was
  // written to `watched`: sequentially consistent, so that stop() or the thread sees the other.
  BeaconWord started{0};
  BeaconWord stopping{0};
  BeaconWord ended{0};
  std::atomic<const BeaconWord*> watched{&stopping};

  std::unique_ptr<Sentinel> sentinel;
  std::string sentinel_trouble;
  std::thread thread;
};

Beacon::Beacon(BeaconConfig config) : parts_(std::make_unique<Parts>(std::move(config))) {
  try {
    parts_->thread = deaf_thread([parts = parts_.get()] { parts->run(); });
  } catch (const std::system_error& error) {
    throw SystemError("the beacon's thread", error.code().value());
  }
  parts_->await_start();
  parts_->post_sentinel();
  parts_->config.memory.reset();
}

Beacon::~Beacon() { stop(); }

void Beacon::stop() {
  if (parts_->thread.joinable()) parts_->stop();
}

const std::string& Beacon::sentinel_trouble() const { return parts_->sentinel_trouble; }

}  // namespace standfast
