// What our wire costs over RDMA: a ping-pong of two processes, once bare - a receive posted, a
// send, completions polled - and once through VerbsWire, with its numbers, credits and checksums.
// The core's group beside them does the same by send and recv, its guard and its numbers included.
// For frames of a large message also a stream: one way, as fast as it goes, over one to four
// cables. Over the emulator (make dev has built it), in the top directory:
//   make core-plain
//   g++ -std=c++20 -O2 -I. bench/verbs.cpp build/core-plain/*.a -ldl -o /tmp/verbs
//   /tmp/verbs src/standfast/_librdma.so
// Arguments: library [bytes, default 8] [rounds, default 100000] [most times the bare one: else
// status 1] [cables, default 1]. Sizes above a small message's are compared with a bare large one.
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
#include "core/group.h"

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

std::string device_of(bool first, int cable) {
  return std::string(first ? "rdma_a" : "rdma_b") + std::to_string(cable);
}

std::unique_ptr<verbs::Rail> connected_rail(const std::string& library, int fd, bool first,
                                            int cable) {
  const auto domain = std::make_shared<verbs::Domain>(
      verbs::load_library(library), verbs::Domain::Use{device_of(first, cable), 1, 1});
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
  const auto rail = connected_rail(library, fd, first, 0);
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

// A bare stream: sends from slot to slot, and a small message for every second one that was taken.
class BareStream {
 public:
  BareStream(const std::string& library, int fd, bool first, int cables, std::size_t bytes)
      : first_(first), memory_(bytes) {
    for (int cable = 0; cable < cables; ++cable) {
      ends_.push_back({connected_rail(library, fd, first, cable)});
    }
  }

  void run(int messages) {
    for (int done = 0; done < messages; ++done) {
      End& end = ends_[next_++ % ends_.size()];
      first_ ? send(end) : receive(end);
    }
    if (!first_) return;
    for (End& end : ends_) {
      while (end.sent - end.acknowledged >= 2) look(end);
    }
  }

 private:
  // One cable's. Counts grow for ever.
  struct End {
    std::unique_ptr<verbs::Rail> rail;
    unsigned sent = 0;
    unsigned left = 0;  // sends that are complete
    unsigned acknowledged = 0;
    unsigned taken = 0;
    std::vector<int> arrived = {};
  };
  static constexpr unsigned kSlots = 4;
  static constexpr unsigned kReceives = 8;

  void look(End& end) {
    verbs::Completion done[8];
    const int count = end.rail->poll(done, 8);
    for (int i = 0; i < count; ++i) {
      if (done[i].status != verbs::WcStatus::kSuccess) give_up("a request failed");
      if (!done[i].is_receive) {
        end.left += done[i].size == Size::kLarge;
      } else if (done[i].size == Size::kLarge) {
        end.arrived.push_back(done[i].slot);
      } else {
        end.acknowledged += 2;
        if (end.rail->post_receive(Size::kSmall, done[i].slot) != 0) give_up("no receive");
      }
    }
  }

  void send(End& end) {
    while (end.sent - end.left >= kSlots || end.sent - end.acknowledged >= kReceives) look(end);
    const int slot = static_cast<int>(end.sent++ % kSlots);
    std::memcpy(end.rail->send_slot(Size::kLarge, slot), memory_.data(), memory_.size());
    if (end.rail->post_send(Size::kLarge, slot) != 0) give_up("no send");
  }

  void receive(End& end) {
    while (end.arrived.empty()) look(end);
    const int slot = end.arrived.front();
    end.arrived.erase(end.arrived.begin());
    std::memcpy(memory_.data(), end.rail->receive_slot(Size::kLarge, slot), memory_.size());
    if (end.rail->post_receive(Size::kLarge, slot) != 0) give_up("no receive");
    if (++end.taken % 2 == 0) {
      const int small = static_cast<int>(end.taken / 2 % 16);
      if (end.rail->post_send(Size::kSmall, small) != 0) give_up("no send");
    }
  }

  const bool first_;
  std::vector<End> ends_;
  std::vector<std::byte> memory_;
  std::size_t next_ = 0;
};

// The median time of one message, over runs of so many.
template <class Run>
double stream_us(int fd, int messages, Run run) {
  std::vector<double> times;
  run(messages / 10 + 1);
  for (int i = 0; i < kRuns; ++i) {
    meet(fd);
    const Nanos begin = now_ns();
    run(messages);
    meet(fd);
    times.push_back(static_cast<double>(now_ns() - begin) / 1e3 / messages);
  }
  std::sort(times.begin(), times.end());
  return times[kRuns / 2];
}

double bare_stream_us(const std::string& library, int fd, bool first, std::size_t bytes,
                      int messages, int cables) {
  BareStream stream(library, fd, first, cables, bytes);
  return stream_us(fd, messages, [&](int count) { stream.run(count); });
}

template <class Attempt>
void insist(const Wire& wire, Attempt attempt) {
  for (;;) {
    const Turn turn = attempt();
    if (turn == Turn::kDone) return;
    if (turn != Turn::kNotYet) give_up(wire.trouble().c_str());
  }
}

std::unique_ptr<verbs::Link> connected_link(const std::string& library, int fd, bool first,
                                            int cables) {
  std::vector<std::unique_ptr<verbs::Rail>> rails;
  for (int cable = 0; cable < cables; ++cable) {
    rails.push_back(connected_rail(library, fd, first, cable));
  }
  auto link = std::make_unique<verbs::Link>(std::move(rails), verbs::Link::Ends{77, first});
  link->greet();
  while (!link->is_greeted()) {
  }
  return link;
}

std::unique_ptr<VerbsWire> connected_wire(const std::string& library, int fd, bool first,
                                          int cables) {
  return std::make_unique<VerbsWire>(first ? 1 : 0, "rdma", Fd(),
                                     connected_link(library, fd, first, cables));
}

double wire_stream_us(const std::string& library, int fd, bool first, std::size_t bytes,
                      int messages, int cables) {
  const auto wire = connected_wire(library, fd, first, cables);
  std::vector<std::byte> memory(bytes);
  Tag tag;
  tag.kind = OpKind::kSend;
  return stream_us(fd, messages, [&](int count) {
    ++tag.seq;
    for (int i = 0; i < count; ++i) {
      insist(*wire, [&] {
        return first ? wire->send(tag, memory.data(), bytes)
                     : wire->receive(tag, memory.data(), bytes);
      });
    }
    if (first) insist(*wire, [&] { return wire->flush(); });
  });
}

double wire_us(const std::string& library, int fd, bool first, std::size_t bytes, int rounds) {
  const auto wire = connected_wire(library, fd, first, 1);
  std::vector<std::byte> memory(bytes);
  Tag tag;
  tag.kind = OpKind::kSend;
  const auto send = [&] {
    insist(*wire, [&] { return wire->send(tag, memory.data(), bytes); });
    insist(*wire, [&] { return wire->flush(); });
  };
  const auto receive = [&] {
    insist(*wire, [&] { return wire->receive(tag, memory.data(), bytes); });
  };
  return median_us(fd, rounds, [&] {
    ++tag.seq;
    if (first) send();
    receive();
    if (!first) send();
  });
}

// Sockets that a group of two needs beside its wire, one end of each.
struct Sockets {
  Fd control;
  Fd data;
};

double group_us(const std::string& library, int fd, bool first, std::size_t bytes, int rounds,
                Sockets sockets) {
  const int here = first ? 0 : 1;
  GroupConfig config;
  config.shape = {here, 2, 1};
  config.topology = Topology::kMesh;
  config.ranks_here = 2;
  config.limits = {.heartbeat = 500 * kMillisecond,
                   .hint = 3 * kSecond,
                   .silence = 20 * kSecond,
                   .progress = 60 * kSecond};
  config.close_linger = kSecond;
  for (int peer = 0; peer < 2; ++peer) config.peers.push_back({peer, "here", 0, false});
  config.control.emplace_back(1 - here, std::move(sockets.control));
  config.wires.push_back({1 - here, FabricKind::kVerbs, std::move(sockets.data), Fd(), first,
                          "rdma", connected_link(library, fd, first, 1)});
  Group group(std::move(config));
  std::vector<std::byte> memory(bytes);
  Request request;
  request.src = request.dst = memory.data();
  request.count = bytes;
  request.dtype = DType::kUInt8;
  request.peer = 1 - here;
  const auto run = [&](RequestKind kind) {
    request.kind = kind;
    const Result result = group.run(request, nullptr);
    if (result.failure) give_up(result.failure->verdict.cause.c_str());
  };
  const double us = median_us(fd, rounds, [&] {
    if (first) run(RequestKind::kSend);
    run(RequestKind::kReceive);
    if (!first) run(RequestKind::kSend);
  });
  group.close(Watch::Goodbye::kOrderly);
  return us;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) give_up("which library?");
  const std::string library = arguments[1];
  const std::size_t bytes = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 8;
  const int rounds = count > 3 ? std::atoi(arguments[3]) : 100'000;
  const double most = count > 4 ? std::atof(arguments[4]) : 1e9;
  const int cables = count > 5 ? std::atoi(arguments[5]) : 1;
  char folder[] = "/dev/shm/standfast-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) give_up("no folder for the fabric");
  const std::string fabric = std::string(folder) + "/fabric";
  std::FILE* file = std::fopen(fabric.c_str(), "w");
  std::fputs("idle spin\n", file);
  for (int cable = 0; cable < verbs::kRailsMax; ++cable) {
    std::fprintf(file, "cable c%d a:%s:10.0.%d.1 b:%s:10.0.%d.2 up\n", cable,
                 device_of(true, cable).c_str(), cable, device_of(false, cable).c_str(), cable);
  }
  std::fclose(file);
  setenv("STANDFAST_EMULATOR_FABRIC", fabric.c_str(), 1);
  int ends[2];
  int control[2];
  int data[2];
  for (int* pair : {ends, control, data}) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) give_up("no socket");
  }
  const pid_t child = fork();
  const bool first = child != 0;
  setenv("STANDFAST_EMULATOR_HOST", first ? "a" : "b", 1);
  const int here = first ? 0 : 1;
  const int fd = ends[here];
  Sockets sockets{Fd(control[here]), Fd(data[here])};
  for (const int* pair : {ends, control, data}) close(pair[1 - here]);
  int status = 0;
  try {
    const double bare = bare_us(library, fd, first, bytes, rounds);
    const double ours = wire_us(library, fd, first, bytes, rounds);
    const double group = group_us(library, fd, first, bytes, rounds, std::move(sockets));
    const bool is_large = verbs::size_for(bytes, true) == Size::kLarge;
    const double bare_stream =
        is_large ? bare_stream_us(library, fd, first, bytes, rounds, cables) : 0;
    const double our_stream =
        is_large ? wire_stream_us(library, fd, first, bytes, rounds, cables) : 0;
    if (!first) _exit(0);
    std::printf("%zu bytes: bare %.2f us, wire %.2f us one way: %.2f times\n", bytes, bare, ours,
                ours / bare);
    std::printf("%zu bytes: the core's group %.2f us: %.2f times\n", bytes, group, group / bare);
    status = std::max(ours, group) / bare > most;
    if (is_large) {
      std::printf(
          "%zu bytes in a stream, %d cables: bare %.2f us (%.2f GB/s), wire %.2f us: %.2f times\n",
          bytes, cables, bare_stream, static_cast<double>(bytes) / bare_stream / 1e3, our_stream,
          our_stream / bare_stream);
      status = our_stream / bare_stream > most;
    }
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  waitpid(child, nullptr, 0);
  std::remove((fabric + ".state").c_str());
  std::remove(fabric.c_str());
  rmdir(folder);
  return status;
}
