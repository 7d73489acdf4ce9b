// The emulator inside one process, for the sanitizers: two hosts, a thread each, and the emulator's
// own thread between them. What it does for programs is tested in tests/emulator.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/fabric/verbs/abi.h"
#include "emulator/faults.h"
#include "emulator/plan.h"
#include "emulator/ring_queue.h"

extern "C" {
standfast::verbs::Device** ibv_get_device_list(int*);
void ibv_free_device_list(standfast::verbs::Device**);
standfast::verbs::Context* ibv_open_device(standfast::verbs::Device*);
int ibv_close_device(standfast::verbs::Context*);
int ibv_query_gid(standfast::verbs::Context*, std::uint8_t, int, standfast::verbs::Gid*);
standfast::verbs::Pd* ibv_alloc_pd(standfast::verbs::Context*);
int ibv_dealloc_pd(standfast::verbs::Pd*);
standfast::verbs::Mr* ibv_reg_mr(standfast::verbs::Pd*, void*, std::size_t, int);
int ibv_dereg_mr(standfast::verbs::Mr*);
standfast::verbs::Cq* ibv_create_cq(standfast::verbs::Context*, int, void*, void*, int);
int ibv_destroy_cq(standfast::verbs::Cq*);
standfast::verbs::Qp* ibv_create_qp(standfast::verbs::Pd*, standfast::verbs::QpInitAttr*);
int ibv_modify_qp(standfast::verbs::Qp*, standfast::verbs::QpAttr*, int);
int ibv_destroy_qp(standfast::verbs::Qp*);
int standfast_emulator_command(const char*, const char*, char*, std::size_t);
}

namespace standfast {
namespace {

using namespace verbs;

// A fabric of two hosts in a folder of its own.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "standfast-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    std::ofstream(fabric()) << "cable c0 a:d0:10.0.0.1 b:d0:10.0.0.2\n";
  }
  ~Folder() {
    std::array<char, 64> answer{};
    standfast_emulator_command(fabric().c_str(), "forget", answer.data(), answer.size());
    std::filesystem::remove_all(path_);
  }
  std::string fabric() const { return path_ + "/fabric"; }

 private:
  std::string path_;
};

// One host's queue pair with its memory.
class End {
 public:
  End(const Folder& folder, const char* host, std::size_t bytes) : memory(bytes) {
    setenv("STANDFAST_EMULATOR_FABRIC", folder.fabric().c_str(), 1);
    setenv("STANDFAST_EMULATOR_HOST", host, 1);
    int devices = 0;
    Device** list = ibv_get_device_list(&devices);
    REQUIRE(devices == 1);
    context_ = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    domain_ = ibv_alloc_pd(context_);
    region_ = ibv_reg_mr(domain_, memory.data(), bytes, kAccessLocalWrite);
    queue_ = ibv_create_cq(context_, 64, nullptr, nullptr, 0);
    QpInitAttr wanted{};
    wanted.send_cq = wanted.recv_cq = queue_;
    wanted.cap = {.max_send_wr = 16,
                  .max_recv_wr = 16,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    wanted.qp_type = QpType::kUc;
    pair_ = ibv_create_qp(domain_, &wanted);
    REQUIRE(pair_ != nullptr);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    CHECK(ibv_destroy_qp(pair_) == 0);
    CHECK(ibv_destroy_cq(queue_) == 0);
    CHECK(ibv_dereg_mr(region_) == 0);
    CHECK(ibv_dealloc_pd(domain_) == 0);
    CHECK(ibv_close_device(context_) == 0);
  }

  void connect(const End& other) {
    QpAttr attributes{};
    attributes.qp_state = QpState::kInit;
    attributes.port_num = 1;
    REQUIRE(ibv_modify_qp(pair_, &attributes, kQpState | kQpPort | kQpPkeyIndex | kQpAccessFlags) ==
            0);
    attributes.qp_state = QpState::kRtr;
    attributes.path_mtu = Mtu::k1024;
    attributes.dest_qp_num = other.pair_->qp_num;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = 1;
    REQUIRE(ibv_query_gid(other.context_, 1, 1, &attributes.ah_attr.grh.dgid) == 0);
    REQUIRE(ibv_modify_qp(pair_, &attributes,
                          kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn) == 0);
    attributes.qp_state = QpState::kRts;
    REQUIRE(ibv_modify_qp(pair_, &attributes, kQpState | kQpSqPsn) == 0);
  }

  void post_receive(std::size_t offset, std::uint32_t bytes) {
    Sge part = entry(offset, bytes);
    RecvWr request{.wr_id = offset, .next = nullptr, .sg_list = &part, .num_sge = 1};
    RecvWr* bad = nullptr;
    REQUIRE(context_->ops.post_recv(pair_, &request, &bad) == 0);
  }

  void post_send(std::size_t offset, std::uint32_t bytes) {
    Sge part = entry(offset, bytes);
    SendWr request{};
    request.wr_id = offset;
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = SendOpcode::kSend;
    request.send_flags = kSendSignaled;
    SendWr* bad = nullptr;
    REQUIRE(context_->ops.post_send(pair_, &request, &bad) == 0);
  }

  // Polls until one completion is there.
  Wc wait() {
    Wc completion{};
    int found = 0;
    while (found == 0) found = context_->ops.poll_cq(queue_, 1, &completion);
    REQUIRE(found == 1);
    return completion;
  }

  std::vector<std::uint8_t> memory;

 private:
  Sge entry(std::size_t offset, std::uint32_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(memory.data()) + offset, bytes, region_->lkey};
  }

  Context* context_;
  Pd* domain_;
  Mr* region_;
  Cq* queue_;
  Qp* pair_;
};

constexpr std::uint32_t kBytes = 200'000;

std::uint8_t value_of(int round, std::size_t index) {
  return static_cast<std::uint8_t>(static_cast<std::size_t>(round) * 31 + index * 7);
}

void send_rounds(End& end, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kBytes; ++i) end.memory[i] = value_of(round, i);
    end.post_send(0, kBytes);
    CHECK(end.wait().status == WcStatus::kSuccess);
  }
}

std::size_t receive_rounds(End& end, int rounds) {
  std::size_t wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    end.post_receive(0, kBytes);
    CHECK(end.wait().status == WcStatus::kSuccess);
    for (std::size_t i = 0; i < kBytes; ++i) wrong += end.memory[i] != value_of(round, i);
  }
  return wrong;
}

TEST_CASE("emulator: two threads exchange messages of several pieces, intact") {
  const Folder folder;
  End one(folder, "a", kBytes);
  End other(folder, "b", kBytes);
  one.connect(other);
  other.connect(one);
  constexpr int kRounds = 20;
  std::thread sender([&one] { send_rounds(one, kRounds); });
  const std::size_t wrong = receive_rounds(other, kRounds);
  sender.join();
  CHECK(wrong == 0);
}

TEST_CASE("emulator: what nobody polls for is moved by the emulator's own thread") {
  const Folder folder;
  End one(folder, "a", kBytes);
  End other(folder, "b", kBytes);
  one.connect(other);
  other.connect(one);
  one.post_send(0, kBytes);
  other.post_receive(0, kBytes);
  std::array<char, 1024> answer{};
  std::string counts;
  while (counts.find("\"received\":1") == std::string::npos) {
    REQUIRE(standfast_emulator_command(folder.fabric().c_str(), "counters b:d0", answer.data(),
                                       answer.size()) == 0);
    counts = answer.data();
  }
  CHECK(one.wait().status == WcStatus::kSuccess);
  CHECK(other.wait().status == WcStatus::kSuccess);
}

TEST_CASE("emulator: chances are those of their seed, and within their range") {
  using emulator::befalls;
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 31;
  constexpr std::uint64_t kAlways = std::uint64_t{1} << 32;
  int struck = 0;
  for (std::uint64_t n = 0; n < 1000; ++n) {
    CHECK(befalls(0, UINT64_MAX, kHalf, 1, n) == befalls(0, UINT64_MAX, kHalf, 1, n));
    CHECK(befalls(10, 5, kAlways, 0, n) == (n >= 10 && n < 15));
    CHECK_FALSE(befalls(0, UINT64_MAX, 0, 3, n));
    struck += befalls(0, UINT64_MAX, kHalf, 1, n) ? 1 : 0;
  }
  CHECK(struck > 400);
  CHECK(struck < 600);
}

TEST_CASE("emulator: GIDs are read from words, and are one word in shared memory") {
  using emulator::GidEntry;
  using emulator::GidKind;
  using emulator::Profile;
  const auto ipv4 = emulator::parse_gid("10.1.2.255", 0, Profile::kApple);
  REQUIRE(ipv4.size() == 1);
  CHECK(ipv4[0].kind == GidKind::kIpv4);
  CHECK(ipv4[0].value == 0x0a0102ff);
  CHECK(GidEntry::unpack(ipv4[0].pack()).value == ipv4[0].value);
  const auto roce = emulator::parse_gid("fe80:abc", 0, Profile::kRoce);
  REQUIRE(roce.size() == 2);
  CHECK(roce[0].type == 0);
  CHECK(roce[1].type == 2);
  CHECK(roce[1].value == 0xabc);
  for (const char* wrong :
       {"", "10.1.2", "10.1.2.256", "10.1.2.3.4", "fe80:xyz", "fe80:1234567890abc"}) {
    CHECK_THROWS_AS(emulator::parse_gid(wrong, 0, Profile::kApple), std::invalid_argument);
  }
}

TEST_CASE("emulator: a ring queue keeps its order around its end") {
  emulator::RingQueue<int> queue(3);
  CHECK(queue.empty());
  int next = 0;
  for (int i = 0; i < 20; ++i) {
    queue.push(i);
    if (queue.full()) {
      CHECK(queue.pop() == next++);
      CHECK(queue.pop() == next++);
    }
  }
  CHECK(queue.size() == static_cast<std::size_t>(20 - next));
}

}  // namespace
}  // namespace standfast
