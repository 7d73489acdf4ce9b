// Shared memory between two ranks of one host. The pair's socket is only a doorbell: one byte wakes
// a sleeper, and its end tells of the peer's death. A payload is copied into the pair's memory, or
// lent: the peer reads it where it lies, in the sender's arena or elsewhere in its memory.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/fabric/fabric.h"
#include "core/fabric/shm/arena.h"
#include "core/fabric/shm/segment.h"

namespace standfast {

class ShmWire final : public Wire {
 public:
  // `first`: this is the lower rank, which sends on lane 0.
  ShmWire(int peer, std::string link, Fd bell, std::shared_ptr<Mapping> mapping, bool first);

  Turn send(const Tag& tag, const void* data, std::size_t bytes) override;
  Turn flush() override;
  void withdraw() override;
  void say_goodbye() override;

  Turn receive(const Tag& tag, void* to, std::size_t bytes) override;
  Turn view(const Tag& tag, std::size_t bytes, const std::byte** data) override;
  Turn release() override;
  Turn peek(Tag* tag, std::size_t* bytes) override;

  int poll_fd() const override { return bell_.get(); }
  bool wakes_by_reading(Half) const override { return true; }
  void asleep(Half half) override;
  void awake(Half half) override;
  bool answer_bell(Half half) override;

  std::string trouble() const override;
  void shut_down() override;
  void abandon() override { bell_.reset(); }
  std::atomic<std::uint32_t>* own_end() override { return &in_.receiver_ended; }
  const std::atomic<std::uint32_t>* peers_end() const override { return &out_.receiver_ended; }

 private:
  SlotHead* next_frame();
  Turn no_room();
  Turn idle();
  Turn expect(const Tag& tag, std::size_t bytes, SlotHead** head);
  bool lend(SlotHead& head, const void* data);
  bool lends_arena(const void* data, std::size_t bytes, std::uint64_t* at);
  bool shows_arena();
  bool stage(SlotHead& head, const void* data);
  bool take(PayloadPlace place);
  void learn_freed();
  PayloadPlace free_place() const;
  void copy_after_all();
  void look_for_arena();
  void try_to_pull();
  Turn locate(const SlotHead& head, void* to, const std::byte** data);
  Turn refuse();
  void ring(std::atomic<std::uint32_t>& sleeper, char letter);

  Fd bell_;
  std::shared_ptr<Mapping> mapping_;
  Lane& out_;
  Lane& in_;
  // The bell's end was read. Either half may read it; the other learns from here. Relaxed: it
  // carries no data.
  std::atomic<bool> bell_ended_{false};
  // Frames are numbered from 1, in 64 bits here, so that no number ever comes again.
  // The sending half's.
  const Arena* arena_ = nullptr;  // whose memory is lent
  std::uint64_t sent_ = 0;
  std::uint64_t freed_seen_ = 0;
  std::uint64_t lent_ = 0;              // the last frame that was lent
  const void* lent_from_[kSlots] = {};  // by slot
  std::uint64_t refusal_seen_ = 0;
  std::uint64_t last_use_[kSlots] = {};  // of each payload: the last frame that lay there
  std::string lack_;                     // of memory, for trouble()
  // The receiving half's.
  std::uint64_t received_ = 0;
  bool looked_for_arena_ = false;
  std::unique_ptr<RegionMapping> peers_arena_;
  bool tried_to_pull_ = false;
  std::uint64_t refused_ = 0;        // the last frame that could not be pulled
  std::vector<std::byte> pulled_;    // a frame that is viewed
  std::uint64_t pulled_number_ = 0;  // which
};

}  // namespace standfast
