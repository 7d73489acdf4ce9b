// What the verbs fabric decides, by tables: the GID, the budget, the shape and soundness of
// messages, and the words for what a library refuses.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/fabric/verbs/budget.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/domain.h"
#include "core/fabric/verbs/gid.h"
#include "core/fabric/verbs/message.h"
#include "core/fabric/verbs/rail.h"
#include "core/fabric/verbs/trouble.h"
#include "tests/core/support.h"

namespace standfast {
namespace {

using namespace verbs;

GidEntry ipv4(int index, int last, GidType type = GidType::kUnknown) {
  GidEntry entry{index, {}, type};
  entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
  entry.gid.raw[12] = 10;
  entry.gid.raw[15] = static_cast<std::uint8_t>(last);
  return entry;
}

GidEntry link_local(int index) {
  GidEntry entry{index, {}, GidType::kUnknown};
  entry.gid.raw[0] = 0xfe;
  entry.gid.raw[1] = 0x80;
  entry.gid.raw[15] = 9;
  return entry;
}

GidEntry zero(int index) { return {index, {}, GidType::kUnknown}; }

// The index that is chosen, or the code of the refusal.
std::string choice(std::vector<GidEntry> table, std::string address = "",
                   std::vector<std::string> likely = {}, LinkLayer layer = LinkLayer::kEthernet) {
  try {
    return std::to_string(
        choose_gid({"rdma_en5", layer, std::move(table), std::move(address), std::move(likely)})
            .index);
  } catch (const VerbsError& error) {
    return error.trouble().code;
  }
}

std::string budget(int rails, DeviceOffer offer) {
  try {
    const Need need = need_of(rails, rail_bytes(true), offer);
    return std::to_string(need.queue_pairs) + (need.has_large ? " large" : " small");
  } catch (const VerbsError& error) {
    return error.trouble().code + ": " + error.what();
  }
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

// The entry is found by its address, wherever it is in the table, and used by its own index.
TEST_CASE("verbs gid: found by address") {
  CHECK(choice({link_local(0), ipv4(1, 1)}) == "1");
  CHECK(choice({link_local(0), link_local(1), ipv4(2, 1)}) == "2");
  CHECK(choice({ipv4(0, 1), link_local(1)}) == "0");
  CHECK(choice({zero(0), link_local(1), ipv4(4, 3)}) == "4");
}

// No address, or more than one without a reason to prefer one, is an error and never a guess.
TEST_CASE("verbs gid: fails closed") {
  CHECK(choice({}) == "no_gid");
  CHECK(choice({zero(0), zero(1)}) == "no_gid");
  CHECK(choice({link_local(0)}) == "no_gid");
  CHECK(choice({link_local(0), ipv4(1, 1), ipv4(2, 2)}) == "ambiguous_gid");
  CHECK(choice({ipv4(1, 1), ipv4(2, 2)}, "10.0.0.2") == "2");
  CHECK(choice({ipv4(1, 1), ipv4(2, 2)}, "10.0.0.3") == "no_gid");
  CHECK(choice({ipv4(1, 1), ipv4(2, 2)}, "", {"192.168.0.1", "10.0.0.1"}) == "1");
  CHECK(choice({ipv4(1, 1), ipv4(2, 2)}, "", {"192.168.0.1"}) == "ambiguous_gid");
  CHECK(choice({ipv4(1, 1)}, "", {"192.168.0.1"}) == "1");
}

// A RoCE table has each address once per version: the later one is taken.
TEST_CASE("verbs gid: RoCE versions") {
  CHECK(choice({link_local(0), ipv4(2, 1, GidType::kRoceV1), ipv4(3, 1, GidType::kRoceV2)}) == "3");
  CHECK(choice({ipv4(4, 1, GidType::kRoceV2), ipv4(5, 1, GidType::kRoceV1)}) == "4");
  CHECK(choice({ipv4(2, 1, GidType::kRoceV2), ipv4(3, 2, GidType::kRoceV2)}) == "ambiguous_gid");
}

// On InfiniBand the LID is the address; any entry does, but there must be one.
TEST_CASE("verbs gid: InfiniBand") {
  CHECK(choice({link_local(0)}, "", {}, LinkLayer::kInfiniBand) == "0");
  CHECK(choice({}, "", {}, LinkLayer::kInfiniBand) == "no_gid");
}

// The text shows the table and what to do.
TEST_CASE("verbs gid: the words") {
  try {
    (void)choose_gid({"rdma_en3", LinkLayer::kEthernet, {link_local(0)}, "", {}});
    FAIL("nothing was thrown");
  } catch (const VerbsError& error) {
    CHECK(std::string(error.what()) ==
          "no IPv4-mapped GID on rdma_en3 (table: 0: fe80:0:0:0:0:0:0:9)");
    CHECK(contains(error.trouble().hint, "IPv4 address"));
    CHECK(error.trouble().device == "rdma_en3");
  }
}

// Two queue pairs per connection, or one if the device has no more; what it can't have is said with
// both numbers.
TEST_CASE("verbs budget") {
  const auto offer = [](int pairs) { return DeviceOffer{"rdma_en5", pairs, 100, 0}; };
  CHECK(budget(1, offer(10)) == "2 large");
  CHECK(budget(5, offer(10)) == "10 large");
  CHECK(budget(6, offer(10)) == "6 small");
  CHECK(budget(10, offer(10)) == "10 small");
  CHECK(contains(budget(14, offer(10)), "too_few_queue_pairs: "));
  CHECK(contains(budget(14, offer(10)), "needs 14 queue pairs, device offers 10"));
  CHECK(contains(budget(1, {"rdma_en5", 10, 0, 0}), "too_few_regions: "));
  CHECK(contains(budget(1, {"rdma_en5", 10, 100, 4096}), "too_few_regions: "));
}

// A message has one of two sizes, both whole in units of Apple's frames.
TEST_CASE("verbs message: how a frame is cut") {
  static_assert(message_bytes(Size::kSmall) == kUnitBytes);
  static_assert(message_bytes(Size::kLarge) % kUnitBytes == 0);
  static_assert(payload_bytes_max(Size::kLarge) == kFrameBytes);
  constexpr std::size_t kSmallMost = payload_bytes_max(Size::kSmall);
  CHECK(size_for(0, true) == Size::kSmall);
  CHECK(size_for(kSmallMessagesMax * kSmallMost, true) == Size::kSmall);
  CHECK(size_for(kSmallMessagesMax * kSmallMost + 1, true) == Size::kLarge);
  CHECK(size_for(kFrameBytes, false) == Size::kSmall);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, kSmallMost, kSmallMost + 1, 4 * kSmallMost, kFrameBytes}) {
    CAPTURE(bytes);
    for (const bool has_large : {true, false}) {
      const Size size = size_for(bytes, has_large);
      std::size_t offset = 0;
      std::size_t messages = 0;
      do {
        offset += payload_bytes(bytes, offset, size);
        ++messages;
      } while (offset < bytes);
      CHECK(offset == bytes);
      const std::size_t most = payload_bytes_max(size);
      CHECK(messages == std::max<std::size_t>(1, (bytes + most - 1) / most));
    }
  }
}

// Every bit of head and payload is covered.
TEST_CASE("verbs message: any flipped bit is seen") {
  const Expected expected{77, 5, Size::kSmall};
  constexpr std::size_t kBytes = 101;
  // A slot is always whole, whatever a damaged head says of what is in it.
  std::vector<std::byte> payload = test::pattern(payload_bytes_max(Size::kSmall), 3);
  MessageHead head{};
  head.magic = kMagic;
  head.key = 77;
  head.ordinal = 5;
  head.frame_bytes = kBytes;
  head.checksum = checksum_of(head, payload.data(), kBytes);
  REQUIRE(judge(head, payload.data(), expected) == Soundness::kGood);
  for (std::size_t bit = 0; bit < 8 * kBytes; ++bit) {
    CAPTURE(bit);
    payload[bit / 8] ^= std::byte(1 << bit % 8);
    CHECK(judge(head, payload.data(), expected) == Soundness::kDamaged);
    payload[bit / 8] ^= std::byte(1 << bit % 8);
  }
  for (std::size_t bit = 0; bit < 8 * sizeof head; ++bit) {
    CAPTURE(bit);
    MessageHead damaged = head;
    as_bytes(&damaged)[bit / 8] ^= std::byte(1 << bit % 8);
    CHECK(judge(damaged, payload.data(), expected) != Soundness::kGood);
  }
}

// All sizes around the steps in which it goes, and those of whole messages.
TEST_CASE("verbs message: the copy is the payload, and its checksum the same") {
  MessageHead head{};
  head.magic = kMagic;
  head.ordinal = 5;
  for (const std::size_t bytes : {0ul, 1ul, 8ul, 127ul, 4095ul, 4096ul, 4097ul, 8192ul + 3,
                                  payload_bytes_max(Size::kSmall), kFrameBytes - 1, kFrameBytes}) {
    CAPTURE(bytes);
    const std::vector<std::byte> payload = test::pattern(bytes, 7);
    std::vector<std::byte> copy(bytes + 1, std::byte{0xee});
    const std::uint64_t sum = copy_with_checksum(head, copy.data(), payload.data(), bytes);
    CHECK(sum == checksum_of(head, payload.data(), bytes));
    CHECK(std::equal(payload.begin(), payload.end(), copy.begin()));
    CHECK(copy[bytes] == std::byte{0xee});
  }
}

// Whole, but of somebody else, or not the next one.
TEST_CASE("verbs message: foreign and out of order") {
  MessageHead head{};
  head.magic = kMagic;
  head.key = 77;
  head.ordinal = 5;
  head.checksum = checksum_of(head, nullptr, 0);
  CHECK(judge(head, nullptr, {77, 5, Size::kSmall}) == Soundness::kGood);
  CHECK(judge(head, nullptr, {78, 5, Size::kSmall}) == Soundness::kForeign);
  CHECK(judge(head, nullptr, {77, 4, Size::kSmall}) == Soundness::kOutOfOrder);
  CHECK(judge(head, nullptr, {77, 6, Size::kSmall}) == Soundness::kOutOfOrder);
  head.magic = 1;
  CHECK(judge(head, nullptr, {77, 5, Size::kSmall}) == Soundness::kForeign);
}

// Each number that Apple's stack gives has its meaning in the text, and a code that stays.
TEST_CASE("verbs trouble: the words") {
  const Trouble down = no_domain("rdma_en5", PortState::kDown, 0);
  CHECK(down.code == "port_down");
  CHECK(down.text ==
        "couldn't allocate a protection domain on rdma_en5: port is DOWN (cable out, or RDMA off "
        "at the other end)");
  CHECK(no_domain("rdma_en5", PortState::kActive, ENOMEM).code == "no_protection_domain");
  const Target target{"rdma_en4", "rank 2 (10.0.0.3)"};
  const Trouble elsewhere = no_transition(target, "RTR", 60);
  CHECK(elsewhere.code == "address_elsewhere");
  CHECK(contains(elsewhere.text, "RTR on rdma_en4 towards rank 2 (10.0.0.3): 60"));
  CHECK(contains(elsewhere.text, "not at the other end of this cable"));
  CHECK(no_transition(target, "RTR", EINVAL).code == "address_refused");
  CHECK(no_transition(target, "RTR", -60).code == "address_elsewhere");
  CHECK(no_queue_pair("rdma_en5", QpType::kUc, EBUSY).code == "queue_pairs_used_up");
  CHECK(no_queue_pair("rdma_en5", QpType::kRc, 102).code == "queue_pair_type");
  CHECK(contains(refused("rdma_en5", "register memory", "ibv_reg_mr", 0).text, "gave no reason"));
}

// Two ends fit, or it is said what differs.
TEST_CASE("verbs rail: ends that do not fit") {
  RailAddress a;
  a.gid = ipv4(1, 1).gid;
  a.layer = LinkLayer::kEthernet;
  a.gid_type = GidType::kRoceV2;
  RailAddress b = a;
  b.gid = ipv4(1, 2).gid;
  CHECK(mismatch(a, b) == "");
  b.gid_type = GidType::kUnknown;
  CHECK(mismatch(a, b) == "");
  b.gid_type = GidType::kRoceV1;
  CHECK(contains(mismatch(a, b), "RoCE v2 here, RoCE v1 there"));
  b = a;
  CHECK(contains(mismatch(a, b), "10.0.0.1"));
  b.gid = ipv4(1, 2).gid;
  b.type = QpType::kRc;
  CHECK(contains(mismatch(a, b), "UC here, RC there"));
  b.type = a.type;
  b.layer = LinkLayer::kInfiniBand;
  CHECK(contains(mismatch(a, b), "Ethernet here, InfiniBand there"));
}

// Port attributes as the specification codes them.
TEST_CASE("verbs device: speed and MTU") {
  CHECK(link_gbit_per_s(32, 2) == 100);
  CHECK(link_gbit_per_s(128, 2) == 400);
  CHECK(link_gbit_per_s(1, 1) == 2.5);
  CHECK(link_gbit_per_s(0, 2) == 0);
  CHECK(link_gbit_per_s(32, 0) == 0);
  CHECK(mtu_bytes(Mtu::k1024) == 1024);
  CHECK(mtu_bytes(Mtu::k4096) == 4096);
  CHECK(mtu_bytes(static_cast<Mtu>(0)) == 0);
}

}  // namespace standfast
