// One queue pair to one peer, as JACCL uses it: messages without a head, in order, all of one size
// during an operation. A sending and a receiving half, each used by one thread at a time; the two
// share nothing that is written. Nothing here blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/jaccl/port.h"

namespace standfast::jaccl {

// What the other end must know of a queue pair. It travels over the side channel.
struct Record {
  std::int32_t lid = 0;
  std::uint32_t queue_pair = 0;
  std::uint32_t psn = 0;
  verbs::Gid gid{};
};

// Why a lane carries nothing any more.
enum class Fault : std::uint8_t {
  kNone,
  kBroken,      // a completion or a call failed
  kOtherSizes,  // the peer sends messages of another size: it is in another operation
};

class Lane {
 public:
  // Creates the queue pair. Throws VerbsError.
  Lane(std::shared_ptr<Port> port, int peer);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  int peer() const { return peer_; }
  // Reads the port anew and chooses the GID. Throws VerbsError: port_down, no_gid, ambiguous_gid.
  Record record(const std::string& address);
  // Both ends call it, each with the other's record. Throws VerbsError.
  void connect(const Record& theirs, const std::string& peer_text);
  // "rdma rdma_en5 (10.0.0.1) to 10.0.0.2", once connected.
  const std::string& text() const { return text_; }

  // Is the peer one of ours? Then messages are stamped, where there is room.
  bool is_stamped() const { return is_stamped_; }
  void expect_stamps() { is_stamped_ = true; }

  // --- an operation's beginning, for either half: nothing is under way in it
  void begin_sending(std::size_t message) { sending_.begin(message); }
  void begin_receiving(std::size_t message) { receiving_.begin(message); }

  // --- the sending half
  bool can_send() const { return sending_.has_room(); }
  // Memory for the next message, and its departure. send() is false if the device takes no more at
  // the moment: the message stays as it is, for the next attempt.
  std::byte* outgoing() const { return share_ + sending_.offset(sending_.posted); }
  bool send();
  // Messages that are on their way out.
  std::uint64_t unsent() const { return sending_.under_way(); }
  // Looks for completions. True if there were any.
  bool poll_sent();

  // --- the receiving half
  bool can_expect() const { return receiving_.has_room(); }
  // Makes room for one more message. False as for send().
  bool expect();
  std::uint64_t expected() const { return receiving_.posted; }
  std::uint64_t arrived() const { return receiving_.completed; }
  // The oldest message that was not taken; there must be one.
  const std::byte* incoming() const {
    return share_ + kHalfBytes + receiving_.offset(receiving_.freed);
  }
  void take() {
    ++receiving_.freed;
    ++receiving_.total;
  }
  // Of the message that send() posts next, and of the one that lies in incoming().
  std::uint64_t outgoing_ordinal() const { return sending_.total; }
  std::uint64_t incoming_ordinal() const { return receiving_.total; }
  bool poll_arrived();

  // What is wrong, of either half.
  Fault sending_fault() const { return sending_.fault; }
  Fault receiving_fault() const { return receiving_.fault; }
  const std::string& sending_trouble() const { return sending_.trouble; }
  const std::string& receiving_trouble() const { return receiving_.trouble; }
  // "" while the port has its link, else what it has instead. Asks the device.
  std::string port_trouble() const;

 private:
  // Counts messages of the running operation; slots are used in turn.
  struct Half {
    verbs::Cq* queue = nullptr;
    std::size_t message = 0;
    std::uint64_t window = 0;  // messages that may be under way
    std::uint64_t slots = 0;   // the same, before a device took fewer
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;
    std::uint64_t freed = 0;  // receiving: taken; sending: equal to completed
    std::uint64_t total = 0;  // sent, or taken, in all operations
    Fault fault = Fault::kNone;
    std::string trouble;

    void begin(std::size_t message_bytes);
    bool has_room() const { return posted - freed < window && fault == Fault::kNone; }
    std::uint64_t under_way() const { return posted - completed; }
    std::size_t offset(std::uint64_t index) const {
      return static_cast<std::size_t>(index % slots) * message;
    }
    bool was_posted(int error, const char* call, const std::string& lane);
    void fail(Fault why, std::string text);
  };

  void create();
  void destroy();
  void to_init();
  void to_receive(const Record& theirs, const std::string& peer_text);
  void to_send(const std::string& peer_text);
  bool collect(Half& half, bool is_receive);

  const std::shared_ptr<Port> port_;
  const int peer_;
  std::byte* const share_;
  verbs::QpType type_;
  verbs::Qp* pair_ = nullptr;
  Half sending_;
  Half receiving_;
  int gid_index_ = 0;
  verbs::Gid gid_{};
  bool is_stamped_ = false;
  std::string text_;
};

}  // namespace standfast::jaccl
