// Very many messages over links on emulated cables: under delays that put the queue pairs out of
// step with each other, and over devices that drop what finds no receive.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/fabric/verbs/link.h"
#include "tests/core/support.h"

extern "C" {
standfast::verbs::Device** ibv_get_device_list(int*);
void ibv_free_device_list(standfast::verbs::Device**);
const char* ibv_get_device_name(standfast::verbs::Device*);
standfast::verbs::Context* ibv_open_device(standfast::verbs::Device*);
int ibv_close_device(standfast::verbs::Context*);
int ibv_query_device(standfast::verbs::Context*, standfast::verbs::DeviceAttr*);
int ibv_query_port(standfast::verbs::Context*, std::uint8_t, standfast::verbs::PortAttr*);
int ibv_query_gid(standfast::verbs::Context*, std::uint8_t, int, standfast::verbs::Gid*);
standfast::verbs::Pd* ibv_alloc_pd(standfast::verbs::Context*);
int ibv_dealloc_pd(standfast::verbs::Pd*);
standfast::verbs::Mr* ibv_reg_mr(standfast::verbs::Pd*, void*, std::size_t, int);
int ibv_dereg_mr(standfast::verbs::Mr*);
standfast::verbs::Cq* ibv_create_cq(standfast::verbs::Context*, int, void*,
                                    standfast::verbs::CompChannel*, int);
int ibv_destroy_cq(standfast::verbs::Cq*);
standfast::verbs::Qp* ibv_create_qp(standfast::verbs::Pd*, standfast::verbs::QpInitAttr*);
int ibv_modify_qp(standfast::verbs::Qp*, standfast::verbs::QpAttr*, int);
int ibv_destroy_qp(standfast::verbs::Qp*);
int standfast_emulator_command(const char*, const char*, char*, std::size_t);
}

namespace standfast {
namespace {

using namespace verbs;

// Each way; a million in all.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kMessages = 10'000;  // sanitizers are slow
#else
constexpr std::uint32_t kMessages = 500'000;
#endif

// The emulator that is linked into this binary.
std::shared_ptr<const Library> emulator() {
  auto calls = std::make_shared<Library>();
  calls->path = "the emulator";
  calls->get_device_list = ibv_get_device_list;
  calls->free_device_list = ibv_free_device_list;
  calls->get_device_name = ibv_get_device_name;
  calls->open_device = ibv_open_device;
  calls->close_device = ibv_close_device;
  calls->query_device = ibv_query_device;
  calls->query_port = ibv_query_port;
  calls->query_gid = ibv_query_gid;
  calls->alloc_pd = ibv_alloc_pd;
  calls->dealloc_pd = ibv_dealloc_pd;
  calls->reg_mr = ibv_reg_mr;
  calls->dereg_mr = ibv_dereg_mr;
  calls->create_cq = ibv_create_cq;
  calls->destroy_cq = ibv_destroy_cq;
  calls->create_qp = ibv_create_qp;
  calls->modify_qp = ibv_modify_qp;
  calls->destroy_qp = ibv_destroy_qp;
  calls->query_gid_ex = nullptr;
  return calls;
}

// Two hosts, a and b, with cables between them, in a folder of its own.
class Fabric {
 public:
  Fabric(int cables, const std::string& head) : cables_(cables) {
    std::string name = (std::filesystem::temp_directory_path() / "standfast-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    std::ofstream file(path());
    file << head;
    for (int i = 0; i < cables; ++i) {
      const std::string k = std::to_string(i);
      file << "cable c" << k << " a:d" << k << ":10.0." << k << ".1 b:d" << k << ":10.0." << k
           << ".2\n";
    }
  }
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  ~Fabric() {
    command("forget");
    unsetenv("STANDFAST_EMULATOR_FABRIC");
    unsetenv("STANDFAST_EMULATOR_HOST");
    std::filesystem::remove_all(folder_);
  }

  std::string command(const std::string& text) const {
    std::array<char, 1024> answer{};
    standfast_emulator_command(path().c_str(), text.c_str(), answer.data(), answer.size());
    return answer.data();
  }
  std::vector<std::unique_ptr<Rail>> rails(const char* host) const {
    setenv("STANDFAST_EMULATOR_FABRIC", path().c_str(), 1);
    setenv("STANDFAST_EMULATOR_HOST", host, 1);
    std::vector<std::unique_ptr<Rail>> made;
    for (int i = 0; i < cables_; ++i) {
      const Domain::Use use{std::string("d").append(std::to_string(i)), 1, 1};
      made.push_back(std::make_unique<Rail>(std::make_shared<Domain>(emulator(), use)));
    }
    return made;
  }

 private:
  std::string path() const { return folder_ + "/fabric"; }

  const int cables_;
  std::string folder_;
};

// One end of a link, which sends numbered messages and takes those of the other.
class End {
 public:
  explicit End(std::unique_ptr<Link> link)
      : link_(std::move(link)), data_(test::pattern(2 * kFrameBytes, 1)) {}

  void greet() { link_->greet(); }
  bool is_greeted() { return link_->is_greeted(); }
  bool is_done() const { return sent_ == kMessages && taken_ == kMessages; }
  std::string trouble() const { return link_->trouble(); }

  void go_on() {
    for (int burst = 0; burst < 16 && sent_ < kMessages; ++burst) {
      Tag tag;
      tag.seq = sent_;
      tag.kind = OpKind::kSend;
      const std::uint32_t bytes = bytes_of(sent_);
      if (!link_->send(tag, bytes, 0, data_.data() + sent_ % kFrameBytes)) break;
      ++sent_;
    }
    while (const Arrival* arrival = link_->next()) {
      REQUIRE(arrival->head->tag.seq == taken_);
      REQUIRE(arrival->bytes == bytes_of(taken_));
      REQUIRE(std::memcmp(arrival->payload, data_.data() + taken_ % kFrameBytes, arrival->bytes) ==
              0);
      ++taken_;
      link_->release();
    }
  }

 private:
  // One in 499 is large.
  static std::uint32_t bytes_of(std::uint32_t n) {
    return n % 499 == 7 ? static_cast<std::uint32_t>(kFrameBytes) - n % 64 : n % 200;
  }

  std::unique_ptr<Link> link_;
  std::vector<std::byte> data_;
  std::uint32_t sent_ = 0;
  std::uint32_t taken_ = 0;
};

// All messages, both ways at once.
void exchange(const Fabric& fabric) {
  auto here = fabric.rails("a");
  auto there = fabric.rails("b");
  for (std::size_t i = 0; i < here.size(); ++i) {
    const RailAddress a = here[i]->address("", {});
    const RailAddress b = there[i]->address("", {});
    here[i]->connect(b, "rank 1", 7);
    there[i]->connect(a, "rank 0", 7);
  }
  End a(std::make_unique<Link>(std::move(here), Link::Ends{77, true}));
  End b(std::make_unique<Link>(std::move(there), Link::Ends{77, false}));
  a.greet();
  b.greet();
  REQUIRE(test::eventually([&] { return a.is_greeted() && b.is_greeted(); }));
  const Nanos end = deadline_after(now_ns(), 3 * test::kPatience);
  while (!a.is_done() || !b.is_done()) {
    a.go_on();
    b.go_on();
    REQUIRE(a.trouble() == "");
    REQUIRE(b.trouble() == "");
    REQUIRE(now_ns() < end);
  }
}

// How many times the emulator did something, of a counter's name, at one end of all cables.
std::uint64_t counted(const Fabric& fabric, int cables, const std::string& name) {
  std::uint64_t sum = 0;
  for (int i = 0; i < cables; ++i) {
    const std::string answer = fabric.command("counters a:d" + std::to_string(i));
    const std::size_t at = answer.find("\"" + name + "\":");
    REQUIRE(at != std::string::npos);
    sum += std::stoull(answer.substr(at + name.size() + 3));
  }
  return sum;
}

}  // namespace

// Small and large ones, on three cables: every queue pair is held up at its own times.
TEST_CASE("verbs soak: a million messages, out of step between queue pairs") {
  const Fabric fabric(3, "");
  for (const char* host : {"a", "b"}) {
    for (int i = 0; i < 3; ++i) {
      const std::string at = std::string(host) + ":d" + std::to_string(i);
      fabric.command("fault delay at=" + at +
                     " count=all probability=0.002 value=100000 seed=" + std::to_string(i + 1));
    }
  }
  exchange(fabric);
  CHECK(counted(fabric, 3, "delayed") > 0);
}

TEST_CASE("verbs soak: a million messages over devices that drop what finds no receive") {
  const Fabric fabric(1, "policy drop\n");
  exchange(fabric);
  CHECK(counted(fabric, 1, "sent") >= kMessages);
  CHECK(counted(fabric, 1, "no_receive") == 0);
}

}  // namespace standfast
