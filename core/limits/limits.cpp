#include "core/limits/limits.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/fd.h"
#include "core/base/thread.h"
#include "core/reduce/reduce.h"
#include "core/wait/wait.h"

namespace standfast {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kLarge = 64 * kMiB;
constexpr std::size_t kCached = kMiB / 4;

using Samples = std::vector<double>;

double now_s() { return to_seconds(now_ns()); }

// Runs both at once, each in a thread of its own on a core of its own.
template <class First, class Second>
void on_two_cores(First first, Second second) {
  std::thread other = deaf_thread([&] {
    pin_to_core(1);
    second();
  });
  std::thread one = deaf_thread([&] {
    pin_to_core(0);
    first();
  });
  one.join();
  other.join();
}

// --- memory

// Memory that has been written, so that its pages are there. The compiler must not know what is in
// it, nor that nobody reads it.
class Block {
 public:
  explicit Block(std::size_t bytes) : memory_(new unsigned char[bytes + kLine]), bytes_(bytes) {
    std::memset(memory_.get(), 0, bytes + kLine);
  }
  void* get() const {
    void* const begin = memory_.get();
    const auto past = reinterpret_cast<std::uintptr_t>(begin) % kLine;
    return memory_.get() + (past == 0 ? 0 : kLine - past);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kLine = 64;
  std::unique_ptr<unsigned char[]> memory_;
  std::size_t bytes_;
};

double copy_rate(const Block& to, const Block& from, int copies) {
  const double begin = now_s();
  for (int i = 0; i < copies; ++i) {
    std::memcpy(to.get(), from.get(), to.bytes());
    asm volatile("" : : "r"(to.get()) : "memory");
  }
  return copies * static_cast<double>(to.bytes()) / (now_s() - begin);
}

Samples copies(std::size_t bytes, int samples, int copies_each) {
  const Block to(bytes), from(bytes);
  Samples found;
  for (int i = 0; i < samples; ++i) found.push_back(copy_rate(to, from, copies_each));
  return found;
}

Samples copies_on_two() {
  constexpr int kRounds = 9, kCopies = 3;
  std::atomic<int> arrived{0};  // a barrier of the two, counting on
  Samples rates[2];
  const auto work = [&](int mine) {
    const Block to(kLarge), from(kLarge);
    for (int round = 1; round <= kRounds; ++round) {
      arrived.fetch_add(1);
      while (arrived.load() < 2 * round) continue;
      rates[mine].push_back(copy_rate(to, from, kCopies));
    }
  };
  on_two_cores([&] { work(0); }, [&] { work(1); });
  Samples sums;
  for (int i = 0; i < kRounds; ++i) {
    const auto k = static_cast<std::size_t>(i);
    sums.push_back(rates[0][k] + rates[1][k]);
  }
  return sums;
}

Samples additions() {
  constexpr int kSamples = 15;
  const Block a(kLarge), b(kLarge);
  const ReduceFn add = reduce_fn(ReduceOp::kSum, DType::kFloat32);
  const void* const sources[] = {a.get(), b.get()};
  Samples found;
  for (int i = 0; i < kSamples; ++i) {
    const double begin = now_s();
    add(a.get(), sources, 2, kLarge / sizeof(float));
    found.push_back(static_cast<double>(kLarge) / (now_s() - begin));
  }
  return found;
}

// --- latency

// One way, in seconds, from round trips made in groups.
constexpr int kLatencySamples = 2000;

template <class RoundTrip>
Samples one_way(int samples, int trips_each, RoundTrip round_trip) {
  Samples found;
  for (int i = 0; i < samples; ++i) {
    const double begin = now_s();
    for (int k = 0; k < trips_each; ++k) round_trip();
    found.push_back((now_s() - begin) / (2 * trips_each));
  }
  return found;
}

Samples spins() {
  constexpr int kTrips = 10;
  struct Words {  // each written by one side, far enough apart not to share a pair of cache lines
    alignas(128) std::atomic<std::uint32_t> ping{0};
    alignas(128) std::atomic<std::uint32_t> pong{0};
  } words;
  Samples found;
  on_two_cores(
      [&] {
        std::uint32_t turn = 0;
        found = one_way(kLatencySamples, kTrips, [&] {
          words.ping.store(++turn, std::memory_order_release);
          while (words.pong.load(std::memory_order_acquire) != turn) continue;
        });
      },
      [&] {
        for (std::uint32_t turn = 1; turn <= kLatencySamples * kTrips; ++turn) {
          while (words.ping.load(std::memory_order_acquire) != turn) continue;
          words.pong.store(turn, std::memory_order_release);
        }
      });
  return found;
}

void read_all(int fd, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = read(fd, static_cast<unsigned char*>(to) + done, bytes - done);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    SF_CHECK(got > 0);
    done += static_cast<std::size_t>(got);
  }
}

void write_all(int fd, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t put = write(fd, static_cast<const unsigned char*>(from) + done, bytes - done);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    SF_CHECK(put > 0);
    done += static_cast<std::size_t>(put);
  }
}

// Descriptors of a ping-pong: what each side writes to and reads from.
struct Ends {
  Fd write_here, read_here, read_there, write_there;
};

Samples descriptor_ping_pong(const Ends& ends) {
  Samples found;
  on_two_cores(
      [&] {
        std::uint64_t word = 0;
        found = one_way(kLatencySamples, 1, [&] {
          write_all(ends.write_here.get(), &word, sizeof word);
          read_all(ends.read_here.get(), &word, sizeof word);
        });
      },
      [&] {
        std::uint64_t word = 0;
        for (int i = 0; i < kLatencySamples; ++i) {
          read_all(ends.read_there.get(), &word, sizeof word);
          write_all(ends.write_there.get(), &word, sizeof word);
        }
      });
  return found;
}

int checked(int result, const char* call) {
  if (result < 0) throw SystemError(call, errno);
  return result;
}

Fd copy_of(const Fd& fd) { return Fd(checked(dup(fd.get()), "dup")); }

Ends pipe_ends() {
  int there[2], back[2];
  checked(pipe(there), "pipe");
  Fd read_there(there[0]), write_here(there[1]);
  checked(pipe(back), "pipe");
  return {std::move(write_here), Fd(back[0]), std::move(read_there), Fd(back[1])};
}

Ends tcp_ends() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const auto name = reinterpret_cast<sockaddr*>(&address);
  const Fd listener(checked(socket(AF_INET, SOCK_STREAM, 0), "socket"));
  checked(bind(listener.get(), name, sizeof address), "bind");
  checked(listen(listener.get(), 1), "listen");
  checked(getsockname(listener.get(), name, &length), "getsockname");
  Fd here(checked(socket(AF_INET, SOCK_STREAM, 0), "socket"));
  checked(connect(here.get(), name, sizeof address), "connect");
  Fd there(checked(accept(listener.get(), nullptr, nullptr), "accept"));
  const int one = 1;
  for (const int fd : {here.get(), there.get()}) {
    checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "setsockopt");
  }
  Fd here_too = copy_of(here), there_too = copy_of(there);
  return {std::move(here), std::move(here_too), std::move(there), std::move(there_too)};
}

Ends polling_tcp_ends() {
  Ends ends = tcp_ends();
  set_nonblocking(ends.read_here.get());
  set_nonblocking(ends.read_there.get());
  return ends;
}

Samples tcp_streams() {
  constexpr int kStreams = 5;
  constexpr std::size_t kTotal = 256 * kMiB;
  Samples found;
  for (int stream = 0; stream < kStreams; ++stream) {
    const Ends ends = tcp_ends();
    on_two_cores(
        [&] {
          const Block to(kMiB);
          read_all(ends.read_here.get(), to.get(), kMiB);
          const double begin = now_s();
          for (std::size_t got = kMiB; got < kTotal; got += kMiB) {
            read_all(ends.read_here.get(), to.get(), kMiB);
          }
          found.push_back(static_cast<double>(kTotal - kMiB) / (now_s() - begin));
        },
        [&] {
          const Block from(kMiB);
          for (std::size_t put = 0; put < kTotal; put += kMiB) {
            write_all(ends.write_there.get(), from.get(), kMiB);
          }
        });
  }
  return found;
}

bool needs_two(Limit limit) {
  return limit != Limit::kCopy && limit != Limit::kCopyCached && limit != Limit::kAdd;
}

}  // namespace

std::vector<double> measure_limit(Limit limit) {
  if (needs_two(limit) && usable_cores() < 2) return {};
  switch (limit) {
    case Limit::kCopy: return copies(kLarge, 15, 1);
    case Limit::kCopyCached: return copies(kCached, 200, 10);
    case Limit::kCopyOnTwo: return copies_on_two();
    case Limit::kAdd: return additions();
    case Limit::kSpin: return spins();
    case Limit::kWakeUp: return descriptor_ping_pong(pipe_ends());
    case Limit::kTcpBlocking: return descriptor_ping_pong(tcp_ends());
    case Limit::kTcpPolling: return descriptor_ping_pong(polling_tcp_ends());
    case Limit::kTcpStream: return tcp_streams();
  }
  return {};
}

}  // namespace standfast
