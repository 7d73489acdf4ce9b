// What our wire costs over RDMA: a ping-pong of two processes, once bare - a receive posted, a
// send, completions polled - and once through VerbsWire, with its numbers, credits and checksums.
// Over the emulator (make dev has built it), in the top directory:
//   make core-plain
//   g++ -std=c++20 -O2 -I. bench/verbs.cpp build/core-plain/*.a -ldl -o /tmp/verbs
//   /tmp/verbs src/standfast/_librdma.so
// Arguments: library [bytes, default 8] [rounds, default 100000] [most times the bare one: else
// status 1]. Sizes above a small message's are compared with a bare large one.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/fabric/verbs/station.h"
#include "core/fabric/verbs/wire.h"

namespace {

using namespace standfast;
using verbs::RailAddress;
using verbs::Size;

constexpr int kWarmUp = 1000;
constexpr int kRuns = 5;

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "verbs: %s\n", what);
  std::_Exit(1);
}

void write_all(int fd, const void* from, std::size_t bytes) {
  if (write(fd, from, bytes) != static_cast<ssize_t>(bytes)) give_up("the other side is gone");
}
void read_all(int fd, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = read(fd, static_cast<char*>(to) + done, bytes - done);
    if (got <= 0) give_up("the other side is gone");
    done += static_cast<std::size_t>(got);
  }
}

// The wire format of this program only: both ends are the same build.
RailAddress swapped(int fd, const RailAddress& ours) {
  char packed[64] = {};
  std::memcpy(packed, ours.gid.raw, 16);
  std::memcpy(packed + 16, ours.queue_pairs.data(), 8);
  write_all(fd, packed, sizeof packed);
  read_all(fd, packed, sizeof packed);
  RailAddress theirs = ours;
  theirs.device = "the other";
  std::memcpy(theirs.gid.raw, packed, 16);
  std::memcpy(theirs.queue_pairs.data(), packed + 16, 8);
  return theirs;
}

void meet(int fd) {
  char letter = 'm';
  write_all(fd, &letter, 1);
  read_all(fd, &letter, 1);
}

template <class Round>
double median_us(int fd, int rounds, Round round) {
  std::vector<double> runs;
  for (int run = 0; run < kRuns; ++run) {
    for (int i = 0; i < kWarmUp; ++i) round();
    meet(fd);
    const Nanos begin = now_ns();
    for (int i = 0; i < rounds; ++i) round();
    runs.push_back(static_cast<double>(now_ns() - begin) / 1e3 / rounds / 2);
  }
  std::sort(runs.begin(), runs.end());
  return runs[kRuns / 2];
}

std::unique_ptr<verbs::Rail> connected_rail(const std::string& library, int fd, bool first) {
  const auto domain = std::make_shared<verbs::Domain>(
      verbs::load_library(library), verbs::Domain::Use{first ? "rdma_a" : "rdma_b", 1, 1});
  auto rail = std::make_unique<verbs::Rail>(domain);
  const RailAddress theirs = swapped(fd, rail->address("", {}));
  rail->connect(theirs, "the other", 7);
  meet(fd);
  return rail;
}

// Until the message of this round has come; its receive is posted anew.
void await_receive(verbs::Rail& rail) {
  for (;;) {
    verbs::Completion done[4];
    const int count = rail.poll(done, 4);
    bool came = false;
    for (int i = 0; i < count; ++i) {
      if (done[i].status != verbs::WcStatus::kSuccess) give_up("a request failed");
      if (!done[i].is_receive) continue;
      came = true;
      if (rail.post_receive(done[i].size, done[i].slot) != 0) give_up("no receive");
    }
    if (came) return;
  }
}

double bare_us(const std::string& library, int fd, bool first, std::size_t bytes, int rounds) {
  const auto rail = connected_rail(library, fd, first);
  const Size size = verbs::size_for(bytes, true);
  std::vector<std::byte> memory(bytes);
  const auto send = [&] {
    std::memcpy(rail->send_slot(size, 0), memory.data(), bytes);
    if (rail->post_send(size, 0) != 0) give_up("no send");
  };
  const auto receive = [&] {
    await_receive(*rail);
    std::memcpy(memory.data(), rail->receive_slot(size, 0), bytes);
  };
  return median_us(fd, rounds, [&] {
    if (first) send();
    receive();
    if (!first) send();
  });
}

double wire_us(const std::string& library, int fd, bool first, std::size_t bytes, int rounds) {
  std::vector<std::unique_ptr<verbs::Rail>> rails;
  rails.push_back(connected_rail(library, fd, first));
  auto link = std::make_unique<verbs::Link>(std::move(rails), verbs::Link::Ends{77, first});
  link->greet();
  while (!link->is_greeted()) {
  }
  VerbsWire wire(first ? 1 : 0, "rdma", Fd(), std::move(link));
  std::vector<std::byte> memory(bytes);
  Tag tag;
  tag.kind = OpKind::kSend;
  const auto insist = [&](auto attempt) {
    for (;;) {
      const Turn turn = attempt();
      if (turn == Turn::kDone) return;
      if (turn != Turn::kNotYet) give_up(wire.trouble().c_str());
    }
  };
  const auto send = [&] {
    insist([&] { return wire.send(tag, memory.data(), bytes); });
    insist([&] { return wire.flush(); });
  };
  const auto receive = [&] { insist([&] { return wire.receive(tag, memory.data(), bytes); }); };
  return median_us(fd, rounds, [&] {
    ++tag.seq;
    if (first) send();
    receive();
    if (!first) send();
  });
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) give_up("which library?");
  const std::string library = arguments[1];
  const std::size_t bytes = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 8;
  const int rounds = count > 3 ? std::atoi(arguments[3]) : 100'000;
  const double most = count > 4 ? std::atof(arguments[4]) : 1e9;
  char folder[] = "/dev/shm/standfast-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) give_up("no folder for the fabric");
  const std::string fabric = std::string(folder) + "/fabric";
  std::FILE* file = std::fopen(fabric.c_str(), "w");
  std::fputs("idle spin\ncable c a:rdma_a:10.0.0.1 b:rdma_b:10.0.0.2 up\n", file);
  std::fclose(file);
  setenv("STANDFAST_EMULATOR_FABRIC", fabric.c_str(), 1);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) give_up("no socket");
  const pid_t child = fork();
  const bool first = child != 0;
  setenv("STANDFAST_EMULATOR_HOST", first ? "a" : "b", 1);
  const int fd = ends[first ? 0 : 1];
  int status = 0;
  try {
    const double bare = bare_us(library, fd, first, bytes, rounds);
    const double ours = wire_us(library, fd, first, bytes, rounds);
    if (!first) _exit(0);
    std::printf("%zu bytes: bare %.2f us, wire %.2f us one way: %.2f times\n", bytes, bare, ours,
                ours / bare);
    status = ours / bare > most;
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  waitpid(child, nullptr, 0);
  std::remove((fabric + ".state").c_str());
  std::remove(fabric.c_str());
  rmdir(folder);
  return status;
}
