// What carries data between two ranks: the interface that every fabric implements. A wire has two
// halves, sending and receiving; each is used by one thread at a time, and nothing here blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/tag.h"

namespace standfast {

enum class FabricKind : std::uint8_t { kShm, kTcp, kVerbs };

// One frame's payload is at most this long, on every fabric, so that all ranks cut a message alike.
inline constexpr std::size_t kFrameBytes = 128 * 1024;
// At least so many frames are accepted before the peer takes one. The pipelines in collective/ rely
// on it.
inline constexpr int kFramesInFlight = 8;
// A frame of at most this many bytes is flushed whether or not the peer takes it. A longer one may
// stay where it is until the peer has read it there: two ranks that each wait for the flush of such
// a frame before they release the other's would wait for ever.
inline constexpr std::size_t kEagerBytes = 16 * 1024;
// So is a message of at most this many bytes, whatever its frames.
inline constexpr std::size_t kEagerMessageBytes = 256 * 1024;

// What one attempt came to.
enum class Turn : std::uint8_t {
  kDone,
  kNotYet,
  kMismatch,  // the next frame belongs to something else: see got()
  kLeft,      // the peer said goodbye, and nothing is left to receive
  kBroken,    // the connection ended otherwise: see trouble()
};

enum class Half : std::uint8_t { kSending, kReceiving };

class Wire {
 public:
  Wire(int peer, std::string link) : peer_(peer), link_(std::move(link)) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  virtual ~Wire() = default;

  int peer() const { return peer_; }
  const std::string& link() const { return link_; }
  // Grows with whatever comes in: a sign of life for the watch.
  const std::atomic<std::uint64_t>& received() const { return received_; }
  // A TCP connection that carries the data, or -1.
  virtual int data_socket() const { return -1; }

  // --- the sending half
  // Accepts a frame, or says kNotYet. `data` is read until flush() is kDone, and the frame may stay
  // here until flush() is called.
  virtual Turn send(const Tag& tag, const void* data, std::size_t bytes) = 0;
  // Moves on what was accepted; kDone when no memory of the caller's is needed any more.
  virtual Turn flush() = 0;
  // An operation failed, and its caller gets its memory back, flushed or not: nothing that is
  // written there from here on can be taken for what was sent. Safe from any thread.
  virtual void withdraw() {}
  // True while accepted frames wait for flush().
  bool sending() const { return sending_; }
  // The last frame ever: everything was said. Best effort.
  virtual void say_goodbye() = 0;

  // --- the receiving half
  // Takes the next frame, which must carry this tag and size, to `to`.
  virtual Turn receive(const Tag& tag, void* to, std::size_t bytes) = 0;
  // Shows the next frame in place, valid until release().
  virtual Turn view(const Tag& tag, std::size_t bytes, const std::byte** data) = 0;
  // kBroken: the sender took its memory back meanwhile; what was seen must not be used.
  virtual Turn release() = 0;
  // Tells the next frame's tag and size without taking it.
  virtual Turn peek(Tag* tag, std::size_t* bytes) = 0;
  // The tag and size of the frame that was not the expected one.
  const Tag& got() const { return got_; }
  std::size_t got_bytes() const { return got_bytes_; }

  // --- sleeping, for wait/
  // The descriptor to poll, and whether readability (or else writability) wakes this half.
  virtual int poll_fd() const = 0;
  virtual bool wakes_by_reading(Half half) const = 0;
  // Data comes without waking anybody: whoever waits has to look, again and again.
  virtual bool must_be_polled() const { return false; }
  // Why the wire does not work any more, though nobody uses it, or "". Takes system calls; for a
  // thread of its own.
  virtual std::string ailment() { return ""; }
  // From here on until awake() the peer rings when this half can go on. Check again before
  // sleeping.
  virtual void asleep(Half half) = 0;
  virtual void awake(Half half) = 0;
  // The descriptor is ready. True if the peer rang for the other half.
  virtual bool answer_bell(Half half) = 0;

  // Why the wire is kBroken: "recv: ECONNRESET (...)".
  virtual std::string trouble() const = 0;
  // No further traffic in either direction; wakes the peer. Safe from any thread.
  virtual void shut_down() = 0;
  // In the child of a fork: closes the descriptor, without a word to the peer.
  virtual void abandon() = 0;

  // --- the group's end, for operations that ask whether they missed it
  // Set to 1 by this rank's watch when there is a verdict, and at once seen by the peer, though its
  // watch has not run yet. Null on a fabric that can't show it.
  virtual std::atomic<std::uint32_t>* own_end() { return nullptr; }
  // The peer's.
  virtual const std::atomic<std::uint32_t>* peers_end() const { return nullptr; }

 protected:
  Turn mismatch(const Tag& tag, std::size_t bytes) {
    got_ = tag;
    got_bytes_ = bytes;
    return Turn::kMismatch;
  }
  // By the receiving half.
  void note_received() {
    received_.store(received_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  bool sending_ = false;

 private:
  const int peer_;
  const std::string link_;
  Tag got_;
  std::size_t got_bytes_ = 0;
  // Written by the receiving half, read by the watch's thread. Relaxed: that it changes is all.
  std::atomic<std::uint64_t> received_{0};
};

}  // namespace standfast
