// One cable, or one way through a switch, between two ranks: a queue pair per message size.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/fabric/verbs/domain.h"

namespace standfast::verbs {

// What the other end must know of a rail. Travels over rendezvous.
struct RailAddress {
  std::string device;
  int port = 1;
  int lid = 0;
  Gid gid{};
  GidType gid_type = GidType::kUnknown;
  LinkLayer layer = LinkLayer::kUnspecified;
  QpType type = QpType::kUc;
  int mtu = 0;                                      // code of Mtu
  std::array<std::uint32_t, kSizes> queue_pairs{};  // numbers; 0: none of that size
};

// Why two ends can't be joined, or "". Pure.
std::string mismatch(const RailAddress& ours, const RailAddress& theirs);

struct Completion {
  bool is_receive = false;
  Size size = Size::kSmall;
  int slot = 0;
  WcStatus status = WcStatus::kSuccess;
  std::size_t bytes = 0;  // of a receive that succeeded
};

class Rail {
 public:
  // Creates the queue pairs. Throws VerbsError.
  explicit Rail(std::shared_ptr<Domain> domain);
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;
  ~Rail();

  // New queue pairs in place of those that connect() took, or failed to take, somewhere. Throws
  // VerbsError.
  void renew();
  // Reads the port anew and chooses the GID. Throws VerbsError: no_gid, ambiguous_gid, port_down.
  RailAddress address(const std::string& wanted, const std::vector<std::string>& likely);
  // Both ends call it with each other's address and the same number; then messages can come. Posts
  // all receives. Throws VerbsError.
  void connect(const RailAddress& theirs, const std::string& peer, std::uint32_t psn);

  bool has(Size size) const { return pair(size) != nullptr; }
  // How many receives the device took, at connect().
  int posted(Size size) const { return posted_[at(size)]; }
  std::byte* send_slot(Size size, int slot) const;
  std::byte* receive_slot(Size size, int slot) const;
  // 0, or an errno.
  int post_send(Size size, int slot);
  int post_receive(Size size, int slot);
  // How many completions there were, at most `most`; -1 if the queue failed.
  int poll(Completion* completions, int most);

  const std::string& device() const { return domain_->name(); }
  // What address() returned last.
  const RailAddress& last_address() const { return ours_; }
  PortState port_state() const { return domain_->device().port_state(domain_->port()); }
  // "rdma_en5 (10.0.0.1) to rdma_en4 (10.0.0.2)", once connected.
  const std::string& text() const { return text_; }

 private:
  static constexpr std::size_t at(Size size) { return static_cast<std::size_t>(size); }
  Qp* pair(Size size) const { return pairs_[at(size)]; }
  Qp* create(Size size);
  void create_pairs();
  void destroy();
  void make_ready(Size size);
  void to_init(Qp* pair);
  void to_receive(Qp* pair, Size size, const RailAddress& theirs, std::uint32_t psn);
  void to_send(Qp* pair, std::uint32_t psn);
  void post_all_receives(Size size);
  Target target() const { return {domain_->name(), peer_}; }

  std::shared_ptr<Domain> domain_;
  QpType type_;
  std::byte* const share_;
  Cq* const queue_;
  std::array<Qp*, kSizes> pairs_{};
  std::array<int, kSizes> posted_{};
  RailAddress ours_;
  int gid_index_ = 0;
  std::string peer_;
  std::string text_;
};

}  // namespace standfast::verbs
