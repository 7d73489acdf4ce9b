// Numbered, checked messages over the rails between two ranks. Knows of room at the other end, and
// sends nothing that would find none: a device may drop that without a word.
//
// Used by one thread at a time; the wire sees to that. After the first thing that does not fit,
// the link is broken, and says why.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/fabric/verbs/message.h"
#include "core/fabric/verbs/rail.h"

namespace standfast::verbs {

inline constexpr int kRailsMax = 4;

// A message that came, valid until release().
struct Arrival {
  const MessageHead* head = nullptr;
  const std::byte* payload = nullptr;
  std::size_t bytes = 0;  // of the payload
  bool has_landed = false;
};

// Where the next message's payload is wanted, if it is a large one, and this frame: it can be
// copied there in the pass that checks it.
struct Landing {
  const Tag& tag;
  std::size_t frame_bytes;
  std::byte* to;  // room for all of it
};

class Link {
 public:
  struct Ends {
    std::uint32_t key;  // the same at both
    bool first;         // the lower rank's
  };
  // The rails are connected.
  Link(std::vector<std::unique_ptr<Rail>> rails, Ends ends);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();
  // Hands the rails back; nothing else may be called then.
  std::vector<std::unique_ptr<Rail>> dissolve();

  // The first message on each rail, which tells of room; and whether that of the other end came.
  void greet();
  bool is_greeted();
  // Rails on which nothing has come yet: "rdma_en5 (...) to rdma_en4 (...)".
  std::string silent_rails() const;

  bool has_large() const { return has_large_; }
  // The next message of a frame; false if there is no room for it yet, or the link is broken.
  // `data` is the frame's, and copied.
  bool send(const Tag& tag, std::uint32_t frame_bytes, std::uint32_t offset, const std::byte* data);
  // The next message in the order in which they were sent, or null. Whether it went to its landing
  // it says itself; one that is damaged may have, too.
  const Arrival* next(const Landing* landing = nullptr);
  void release();

  // Looks at everything that may have come, on all rails.
  void look();
  // What is wrong with the ports, or "". Asks the devices, and touches nothing that changes: any
  // thread may call it while another uses the link.
  std::string port_trouble() const;
  // The link is broken, for this reason if there was none before.
  void break_off(const std::string& why);

  // Messages of data, both ways, since the beginning.
  std::uint32_t sent() const { return sent_; }
  std::uint32_t taken() const { return taken_; }
  // Everything that came.
  std::uint64_t arrivals() const { return arrivals_; }
  bool is_broken() const { return !trouble_.empty(); }
  const std::string& trouble() const { return trouble_; }
  // All that was posted has left.
  bool is_sent() const;

 private:
  // One queue pair's accounts. Numbers grow for ever and are compared by their difference.
  struct Lane {
    // Receiving. A receive that was taken for data makes room for another message once it is
    // posted anew.
    int window = 0;  // receives for data that the device took
    std::uint32_t room_made = 0;
    std::uint32_t room_told = 0;
    std::uint32_t ordinal_in = 0;
    std::vector<int> unposted;
    std::array<int, kReceiveSlots[0]> arrived{};  // slots with data, oldest first, in a ring
    std::uint32_t arrived_begin = 0;
    std::uint32_t arrived_end = 0;
    // Sending.
    std::uint32_t room = 0;  // of the peer, as it told
    std::uint32_t data_out = 0;
    std::uint32_t ordinal_out = 0;
    std::vector<int> free;
    int in_flight = 0;
    int in_flight_max = 0;
  };
  struct Track {
    std::unique_ptr<Rail> rail;
    std::array<Lane, kSizes> lanes;
    bool greeted = false;
  };

  static constexpr std::size_t at(Size size) { return static_cast<std::size_t>(size); }
  Track& track_of(std::uint32_t sequence) { return tracks_[sequence % tracks_.size()]; }
  void open(Lane& lane, const Rail& rail, Size size);
  bool can_send(const Lane& lane, Size size) const;
  bool post(Track& track, Size size, MessageHead head, const std::byte* payload, std::size_t bytes);
  void collect(Track& track);
  void take_up_to_landing(Track& track);
  bool take_some(Track& track, int most);
  std::byte* landing_for(const MessageHead& head, Size size) const;
  void take(Track& track, const Completion& done);
  void take_arrival(Track& track, Size size, int slot);
  bool repost(Track& track, Size size, int slot, bool makes_room);
  void repost_rest(Track& track);
  void tell_room(Track& track);
  bool owes_room(const Track& track) const;
  const Arrival* front_with(Track& track, std::uint32_t sequence);
  void fail(const Track& track, const std::string& why);

  std::vector<Track> tracks_;
  const Ends ends_;
  bool has_large_ = true;
  std::uint32_t sent_ = 0;
  std::uint32_t taken_ = 0;
  std::uint64_t arrivals_ = 0;
  Arrival arrival_;
  Size arrival_size_ = Size::kSmall;
  const Landing* landing_ = nullptr;  // within next()
  bool has_landed_ = false;           // message number taken_
  std::string trouble_;
  bool trouble_is_flush_ = false;
};

}  // namespace standfast::verbs
