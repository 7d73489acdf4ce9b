// Messages over rails, on a verbs library of this process: what is lost, doubled, damaged, refused
// or starved is never a message that was not sent.
#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/core/verbs_wires.h"

namespace standfast {
namespace {

using test::Fate;
using test::link_pair;
using test::LinkPair;
using test::Loopback;
using verbs::Arrival;
using verbs::Link;
using verbs::VerbsError;

Tag tag_of(std::uint32_t seq) {
  Tag tag;
  tag.seq = seq;
  tag.kind = OpKind::kSend;
  return tag;
}

bool send(Link& link, std::uint32_t n, std::size_t bytes) {
  const std::vector<std::byte> data = test::pattern(bytes, n);
  return link.send(tag_of(n), static_cast<std::uint32_t>(bytes), 0, data.data());
}

// Takes the next message, which must be number n.
bool take(Link& link, std::uint32_t n, std::size_t bytes) {
  const Arrival* arrival = link.next();
  if (arrival == nullptr) return false;
  const std::vector<std::byte> data = test::pattern(bytes, n);
  REQUIRE(arrival->head->tag.seq == n);
  REQUIRE(arrival->bytes == bytes);
  REQUIRE(std::equal(data.begin(), data.end(), arrival->payload));
  link.release();
  return true;
}

std::size_t size_of(std::uint32_t n) { return n % 7 == 0 ? kFrameBytes - n : 64 + n % 100; }

// What became of a link after message `victim` had this fate and many others went well.
std::string trouble_after(Fate fate, std::uint64_t victim, int rails = 1) {
  LinkPair links = link_pair(rails);
  const std::uint64_t begin = Loopback::instance().sent;
  Loopback::instance().fate = [=](std::uint64_t n) {
    return n == begin + victim ? fate : Fate::kArrives;
  };
  std::uint32_t taken = 0;
  for (std::uint32_t n = 0; n < 200; ++n) {
    if (!send(*links.a, n, size_of(n))) break;
    while (taken <= n && take(*links.b, taken, size_of(taken))) ++taken;
    if (links.b->is_broken()) break;
  }
  CHECK(taken + 5 > victim);  // what was before it came; some are no data, but tell of room
  CHECK(taken < 200);
  return links.b->trouble();
}

}  // namespace

// Small and large ones, over one to four cables, in the order in which they were sent.
TEST_CASE("verbs link: order over all queue pairs") {
  for (int rails = 1; rails <= 4; ++rails) {
    CAPTURE(rails);
    LinkPair links = link_pair(rails);
    std::uint32_t taken = 0;
    for (std::uint32_t n = 0; n < 3000; ++n) {
      while (!send(*links.a, n, size_of(n))) {
        REQUIRE(take(*links.b, taken, size_of(taken)));
        ++taken;
      }
    }
    while (taken < 3000) {
      REQUIRE(take(*links.b, taken, size_of(taken)));
      ++taken;
    }
    CHECK(links.b->next() == nullptr);
    CHECK(links.a->trouble() == "");
    CHECK(links.b->trouble() == "");
    CHECK(Loopback::instance().dropped == 0);
  }
}

// A large message of the frame that is wanted goes there at once, one by one; a small one, or one
// of another frame, lies where it came, and nothing else is written.
TEST_CASE("verbs link: landing") {
  LinkPair links = link_pair(1);
  std::vector<std::byte> memory(kFrameBytes, std::byte{0xee});
  const std::vector<std::byte> untouched = memory;
  const auto next = [&](std::uint32_t n, std::size_t bytes) {
    const Tag tag = tag_of(n);
    const verbs::Landing landing{tag, bytes, memory.data()};
    const Arrival* arrival = links.b->next(&landing);
    REQUIRE(arrival != nullptr);
    return arrival->has_landed;
  };
  for (std::uint32_t n = 0; n < 3; ++n) REQUIRE(send(*links.a, n, kFrameBytes - n));
  REQUIRE(send(*links.a, 3, 100));
  for (std::uint32_t n = 0; n < 3; ++n) {
    CAPTURE(n);
    memory = untouched;
    CHECK(next(n, kFrameBytes - n));
    const std::vector<std::byte> data = test::pattern(kFrameBytes - n, n);
    CHECK(std::equal(data.begin(), data.end(), memory.begin()));
    CHECK(std::equal(memory.begin() + static_cast<std::ptrdiff_t>(data.size()), memory.end(),
                     untouched.begin()));
    REQUIRE(take(*links.b, n, kFrameBytes - n));
  }
  memory = untouched;
  CHECK_FALSE(next(3, 100));
  REQUIRE(take(*links.b, 3, 100));
  for (const std::uint32_t wanted : {5u, 4u}) {
    const std::uint32_t n = wanted == 5 ? 4 : 5;
    REQUIRE(send(*links.a, n, kFrameBytes));
    CHECK_FALSE(next(wanted, wanted == 5 ? kFrameBytes : kFrameBytes - 1));
    REQUIRE(take(*links.b, n, kFrameBytes));
  }
  CHECK(memory == untouched);
}

// What is damaged is no message, wherever it was copied.
TEST_CASE("verbs link: a landing of what is damaged") {
  LinkPair links = link_pair(1);
  Loopback::instance().fate = [](std::uint64_t) { return Fate::kIsDamaged; };
  std::vector<std::byte> memory(kFrameBytes);
  const Tag tag = tag_of(0);
  const verbs::Landing landing{tag, kFrameBytes, memory.data()};
  REQUIRE(send(*links.a, 0, kFrameBytes));
  CHECK(links.b->next(&landing) == nullptr);
  CHECK(test::contains(links.b->trouble(), "damaged"));
  CHECK(links.b->next(&landing) == nullptr);
}

// Addresses that had moved: both ends begin anew, with what messages of the old ones lay there.
TEST_CASE("verbs link: rails are renewed") {
  LinkPair links = link_pair(2);
  REQUIRE(send(*links.a, 0, 100));
  auto here = links.a->dissolve();
  auto there = links.b->dissolve();
  for (const auto& rail : here) rail->renew();
  for (const auto& rail : there) rail->renew();
  links = test::link_pair_of(std::move(here), std::move(there));
  for (std::uint32_t n = 0; n < 100; ++n) {
    REQUIRE(send(*links.a, n, size_of(n)));
    REQUIRE(take(*links.b, n, size_of(n)));
  }
  CHECK(links.b->trouble() == "");
}

// The sender fills what room there is, whoever looks when; the device, which drops what finds no
// receive, never gets to.
TEST_CASE("verbs link: nothing is sent that finds no receive") {
  LinkPair links = link_pair(2);
  std::uint32_t sent[2] = {};
  std::uint32_t taken[2] = {};
  Link* const ends[2] = {links.a.get(), links.b.get()};
  std::uint32_t state = 1;
  for (std::uint32_t step = 0; step < 100'000; ++step) {
    state = state * 1664525u + 1013904223u;
    const std::size_t end = state >> 31;
    const std::size_t bytes = 32;
    // Long runs of sending, then of taking, at either end.
    if ((state >> 20 & 63) < 40 + 20 * (step / 1000 % 2)) {
      sent[end] += send(*ends[end], sent[end], bytes);
    } else {
      taken[end] += take(*ends[end], taken[end], bytes);
    }
  }
  for (const std::size_t end : {0, 1}) {
    while (taken[end] < sent[1 - end]) {
      REQUIRE(take(*ends[end], taken[end], 32));
      ++taken[end];
    }
  }
  CHECK(sent[0] > 10'000);
  CHECK(Loopback::instance().dropped == 0);
}

// A message that was lost, doubled or damaged breaks the link at the next one, with a reason.
TEST_CASE("verbs link: what goes wrong under way is seen") {
  for (const std::uint64_t victim : {1, 5, 7, 50}) {
    CAPTURE(victim);
    for (const int rails : {1, 2, 3}) {
      CAPTURE(rails);
      CHECK(test::contains(trouble_after(Fate::kIsLost, victim, rails), "came in place of"));
      CHECK(test::contains(trouble_after(Fate::kComesTwice, victim, rails), "came in place of"));
      CHECK(test::contains(trouble_after(Fate::kIsDamaged, victim, rails), "checksum"));
    }
  }
}

// A failed completion is the reason, and not what is flushed behind it.
TEST_CASE("verbs link: a completion with an error") {
  const std::string trouble = trouble_after(Fate::kFails, 8);
  CHECK(test::contains(trouble, "a receive ended with status 21"));
  CHECK(test::contains(trouble, "rdma_b (10.0.0.2) to rdma_a (10.0.0.1)"));
}

// No thread belongs to a cable, and so none can end with its error untold: whichever cable fails,
// the next look at the link has it, also while another cable's message is the one that is due. What
// fails later does not take its place.
TEST_CASE("verbs link: one of several cables fails") {
  constexpr std::uint32_t kRails = 4;
  for (std::uint32_t victim = 0; victim < kRails; ++victim) {
    CAPTURE(victim);
    std::uint64_t failing = 0;
    LinkPair links = link_pair(kRails);
    failing = Loopback::instance().sent + victim;
    Loopback::instance().fate = [&](std::uint64_t n) {
      return n == failing ? Fate::kFails : Fate::kArrives;
    };
    for (std::uint32_t n = 0; n < kRails; ++n) REQUIRE(send(*links.a, n, 64));
    links.b->look();
    REQUIRE(links.b->is_broken());
    const std::string first = links.b->trouble();
    CHECK(test::contains(first, "a receive ended with status 21"));
    CHECK_FALSE(send(*links.b, 0, 64));
    failing = Loopback::instance().sent;
    (void)send(*links.a, kRails, 64);
    links.b->look();
    CHECK(links.b->trouble() == first);
  }
}

// A device with less room than it granted gets less, and nothing is lost.
TEST_CASE("verbs link: a window that shrinks") {
  for (const bool is_sending : {true, false}) {
    CAPTURE(is_sending);
    Loopback::instance().reset();
    if (is_sending)
      Loopback::instance().sends_max = 11;
    else
      Loopback::instance().receives_max = 12;
    LinkPair links = test::link_pair_as_is(1);
    std::uint32_t taken = 0;
    for (std::uint32_t n = 0; n < 2000; ++n) {
      while (!send(*links.a, n, size_of(n))) {
        REQUIRE(links.a->trouble() == "");
        REQUIRE(take(*links.b, taken, size_of(taken)));
        ++taken;
      }
    }
    for (; taken < 2000; ++taken) REQUIRE(take(*links.b, taken, size_of(taken)));
    CHECK(Loopback::instance().dropped == 0);
  }
}

// Where a device has no second queue pair to give, small messages carry everything.
TEST_CASE("verbs link: small messages alone") {
  Loopback::instance().reset();
  Loopback::instance().queue_pairs_max = 1;
  LinkPair links = test::link_pair_as_is(1);
  CHECK_FALSE(links.a->has_large());
  const std::vector<std::byte> data = test::pattern(kFrameBytes, 1);
  std::vector<std::byte> got;
  std::uint32_t offset = 0;
  while (got.size() < data.size()) {
    if (offset < data.size() && links.a->send(tag_of(1), kFrameBytes, offset, data.data())) {
      offset += static_cast<std::uint32_t>(
          verbs::payload_bytes(kFrameBytes, offset, verbs::Size::kSmall));
      continue;
    }
    const Arrival* arrival = links.b->next();
    REQUIRE(arrival != nullptr);
    got.insert(got.end(), arrival->payload, arrival->payload + arrival->bytes);
    links.b->release();
  }
  CHECK(got == data);
}

// A port that goes down is said with device, state and both addresses.
TEST_CASE("verbs link: a lost cable") {
  LinkPair links = link_pair(1);
  links.a->break_off(links.a->port_trouble());
  CHECK_FALSE(links.a->is_broken());
  Loopback::instance().state = verbs::PortState::kDown;
  links.a->break_off(links.a->port_trouble());
  CHECK(links.a->trouble() ==
        "rdma_a (10.0.0.1) to rdma_b (10.0.0.2): port is DOWN (cable out, or RDMA off at the "
        "other end)");
  CHECK_FALSE(send(*links.a, 0, 8));
}

// Each call that fails is an error that names device and call, and leaves nothing behind.
TEST_CASE("verbs link: every refusal in turn") {
  const struct {
    const char* call;
    int error;
    const char* code;
  } kCases[] = {
      {"open_device", EACCES, "open_failed"},
      {"query_device", EIO, "call_failed"},
      {"query_port", EIO, "call_failed"},
      {"alloc_pd", ENOMEM, "no_protection_domain"},
      {"reg_mr", ENOMEM, "no_memory_region"},
      {"create_cq", ENOMEM, "no_completion_queue"},
      {"create_qp", EBUSY, "queue_pairs_used_up"},
      {"create_qp", 102, "queue_pair_type"},
      {"INIT", EINVAL, "call_failed"},
      {"RTR", EINVAL, "address_refused"},
      {"RTR", 60, "address_elsewhere"},
      {"RTS", EBUSY, "queue_pair_busy"},
      {"post_recv", EINVAL, "call_failed"},
  };
  for (const auto& each : kCases) {
    CAPTURE(each.call);
    Loopback& loopback = Loopback::instance();
    loopback.reset();
    loopback.refusals[each.call] = each.error;
    std::string code;
    std::string text;
    try {
      (void)test::link_pair_as_is(1);
    } catch (const VerbsError& error) {
      code = error.trouble().code;
      text = error.what();
    }
    CHECK(code == each.code);
    CHECK(test::contains(text, "rdma_"));
    CHECK(loopback.open == 0);
    CHECK(loopback.closed_in_order);
  }
}

// What was created goes in the order that Apple's stack wants.
TEST_CASE("verbs link: the order of the end") {
  Loopback::instance().reset();
  {
    LinkPair links = link_pair(3);
  }
  CHECK(Loopback::instance().closed_in_order);
  CHECK(Loopback::instance().open == 0);
}

}  // namespace standfast
