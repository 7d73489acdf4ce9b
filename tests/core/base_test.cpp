// The lowest layer: descriptors, bytes, texts for errors, the clock, the bell, and what a fork
// does.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/bell.h"
#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/fd.h"
#include "core/base/fork.h"
#include "core/base/stream.h"
#include "core/base/thread.h"
#include "tests/core/support.h"

namespace standfast {
namespace {

using test::eventually;
using test::socket_pair;
using test::tcp_pair;

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

bool is_readable(int fd) {
  pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, 0) == 1;
}

// A pipe that is closed for reading.
Fd broken_pipe() {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  ::close(ends[0]);
  return Fd(ends[1]);
}

// Says whether SIGPIPE came, and puts back what was before.
class PipeSignal {
 public:
  PipeSignal() {
    came_ = 0;
    struct sigaction ours{};
    ours.sa_handler = [](int) { came_ = 1; };
    sigaction(SIGPIPE, &ours, &before_);
  }
  ~PipeSignal() { sigaction(SIGPIPE, &before_, nullptr); }
  bool came() const { return came_ != 0; }

 private:
  static volatile std::sig_atomic_t came_;
  struct sigaction before_{};
};
volatile std::sig_atomic_t PipeSignal::came_ = 0;

}  // namespace

// Whatever the sizes and the alignments of both sides: the bytes are copied, and no others.
TEST_CASE("base: streamed bytes") {
  constexpr std::size_t kPast = 128;
  std::vector<unsigned char> from(70000), to(70000 + 2 * kPast);
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(i * 7 + i / 251);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 4096, 16383, 16384, 16500, 65537}) {
    for (const std::size_t shift : {0, 1, 16, 63, 64}) {
      for (const std::size_t begin : {0, 5}) {
        CAPTURE(bytes);
        CAPTURE(shift);
        std::fill(to.begin(), to.end(), 0xee);
        stream_bytes(to.data() + kPast + shift, from.data() + begin, bytes);
        const auto first = to.begin() + static_cast<std::ptrdiff_t>(kPast + shift);
        const auto end = first + static_cast<std::ptrdiff_t>(bytes);
        const auto is_untouched = [](unsigned char byte) { return byte == 0xee; };
        CHECK(std::all_of(to.begin(), first, is_untouched));
        CHECK(std::all_of(end, to.end(), is_untouched));
        CHECK(std::equal(first, end, from.begin() + static_cast<std::ptrdiff_t>(begin)));
      }
    }
  }
}

// A descriptor is closed once: when its owner goes, is reset, or takes another.
TEST_CASE("fd: ownership") {
  auto [a, b] = socket_pair();
  const int first = a.get();
  const int second = b.get();
  {
    const Fd moved = std::move(a);
    CHECK(moved.get() == first);
    CHECK_FALSE(a.valid());
    CHECK(is_open(first));
  }
  CHECK_FALSE(is_open(first));
  Fd& same = b;
  b = std::move(same);
  CHECK(is_open(second));
  b = Fd();
  CHECK_FALSE(is_open(second));

  auto [c, d] = socket_pair();
  const int third = c.release();
  CHECK_FALSE(c.valid());
  CHECK(is_open(third));
  c = Fd(third);
  const int fourth = d.get();
  d = std::move(c);
  CHECK_FALSE(is_open(fourth));
  CHECK(d.get() == third);
  d.reset();
  d.reset();
  CHECK_FALSE(is_open(third));
}

// Making a descriptor non-blocking keeps its other flags and says so if it can't.
TEST_CASE("fd: set_nonblocking") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Fd read_end(ends[0]);
  const Fd write_end(ends[1]);
  set_nonblocking(write_end.get());
  const int flags = fcntl(write_end.get(), F_GETFL);
  CHECK((flags & O_NONBLOCK) != 0);
  CHECK((flags & O_ACCMODE) == O_WRONLY);
  CHECK_THROWS_AS(set_nonblocking(-1), SystemError);
}

// A transfer tells data, nothing yet, the end and an error apart, whatever errno held before.
TEST_CASE("fd: what a transfer came to") {
  auto [a, b] = socket_pair();
  char buffer[8] = {};
  iovec part = {buffer, sizeof buffer};

  CHECK(receive_some(b.get(), buffer, sizeof buffer).kind == Transfer::Kind::kWouldBlock);
  CHECK(receive_some(b.get(), &part, 1).kind == Transfer::Kind::kWouldBlock);
  CHECK(send_some(a.get(), "abc", 3).bytes == 3);
  const Transfer moved = receive_some(b.get(), buffer, sizeof buffer);
  CHECK(moved.kind == Transfer::Kind::kMoved);
  CHECK(moved.bytes == 3);
  CHECK(std::memcmp(buffer, "abc", 3) == 0);

  a.reset();
  for (const int before : {EAGAIN, EINTR, ECONNRESET, 0}) {
    CAPTURE(before);
    errno = before;
    CHECK(receive_some(b.get(), buffer, sizeof buffer).kind == Transfer::Kind::kEnd);
    errno = before;
    CHECK(receive_some(b.get(), &part, 1).kind == Transfer::Kind::kEnd);
  }
  errno = EAGAIN;
  const Transfer failed = receive_some(-1, buffer, sizeof buffer);
  CHECK(failed.kind == Transfer::Kind::kError);
  CHECK(failed.code == EBADF);
}

// A full socket would block; it takes what fits, in several parts as in one.
TEST_CASE("fd: a full socket") {
  auto [a, b] = socket_pair();
  const std::vector<char> much(1 << 20, 'm');
  std::size_t sent = 0;
  Transfer transfer = send_some(a.get(), much.data(), much.size());
  while (transfer.kind == Transfer::Kind::kMoved) {
    sent += transfer.bytes;
    transfer = send_some(a.get(), much.data(), much.size());
  }
  CHECK(transfer.kind == Transfer::Kind::kWouldBlock);
  CHECK(sent > 0);
  iovec parts[2] = {{const_cast<char*>(much.data()), 1}, {const_cast<char*>(much.data()), 1}};
  CHECK(send_some(a.get(), parts, 2).kind == Transfer::Kind::kWouldBlock);
}

// Writing to somebody who is gone is an error with its errno, never a signal.
TEST_CASE("fd: no SIGPIPE") {
  const PipeSignal signal;
  for (const bool is_tcp : {false, true}) {
    CAPTURE(is_tcp);
    auto [a, b] = is_tcp ? tcp_pair() : socket_pair();
    b.reset();
    Transfer transfer{};
    const Fd& sender = a;
    CHECK(eventually([&] {
      transfer = send_some(sender.get(), "x", 1);
      return transfer.kind == Transfer::Kind::kError;
    }));
    CHECK((transfer.code == EPIPE || transfer.code == ECONNRESET));
    iovec part = {const_cast<char*>("x"), 1};
    CHECK(send_some(a.get(), &part, 1).kind == Transfer::Kind::kError);
  }
  CHECK_FALSE(signal.came());
}

// Last words are written where there is room, and given up at once where nobody reads.
TEST_CASE("fd: write_without_blocking") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Fd read_end(ends[0]);
  const Fd write_end(ends[1]);  // blocking, as a stderr is
  write_without_blocking(write_end.get(), "last words", 10);
  char buffer[32] = {};
  CHECK(read(read_end.get(), buffer, sizeof buffer) == 10);
  CHECK(std::string(buffer) == "last words");

  set_nonblocking(write_end.get());
  const std::string filler(4096, 'f');
  while (write(write_end.get(), filler.data(), filler.size()) > 0) {
  }
  fcntl(write_end.get(), F_SETFL, 0);
  const Nanos start = now_ns();
  write_without_blocking(write_end.get(), "x", 1);
  CHECK(now_ns() - start < 10 * kSecond);
  CHECK((fcntl(write_end.get(), F_GETFL) & O_NONBLOCK) == 0);
  write_without_blocking(-1, "x", 1);
}

// Threads of ours are never interrupted by the program's signals, not even by a broken pipe.
TEST_CASE("thread: deaf to signals") {
  const PipeSignal signal;
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  bool blocks_all = false;
  const Fd nobody = broken_pipe();
  std::thread thread = deaf_thread([&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocks_all = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1 &&
                 sigismember(&mask, SIGUSR1) == 1;
    write_without_blocking(nobody.get(), "x", 1);
  });
  thread.join();
  CHECK(blocks_all);
  CHECK_FALSE(signal.came());
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  CHECK(sigismember(&after, SIGUSR1) == sigismember(&before, SIGUSR1));
}

#if defined(__linux__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)  // they need memory themselves
// Where there can be no thread, the caller's own signals come back to it all the same.
TEST_CASE("thread: no thread to be had") {
  const pid_t child = test::fork_process();
  if (child == 0) {
    const rlimit nothing = {0, 0};
    setrlimit(RLIMIT_AS, &nothing);
    for (int i = 0; i < 1000; ++i) {
      try {
        deaf_thread([] { pause(); }).detach();
      } catch (const std::system_error&) {
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        _exit(sigismember(&mask, SIGINT));
      }
    }
    _exit(2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

// Integers are little-endian at any address, and copying nothing needs no address.
TEST_CASE("bytes") {
  std::byte memory[16] = {};
  store(memory + 1, std::uint32_t{0x04030201});
  for (int i = 0; i < 4; ++i) CHECK(memory[1 + i] == static_cast<std::byte>(i + 1));
  CHECK(load<std::uint32_t>(memory + 1) == 0x04030201);
  CHECK(load<std::uint16_t>(memory + 2) == 0x0302);
  store(memory + 3, std::int64_t{-2});
  CHECK(load<std::int64_t>(memory + 3) == -2);
  copy_bytes(nullptr, nullptr, 0);
  copy_bytes(memory, "abc", 3);
  CHECK(std::memcmp(memory, "abc", 3) == 0);
}

// An errno is told by name and in words, one that has no name by its number.
TEST_CASE("error: errno_text") {
  CHECK(errno_text(ECONNRESET) == std::string("ECONNRESET (") + std::strerror(ECONNRESET) + ")");
  CHECK(errno_text(EPIPE).rfind("EPIPE (", 0) == 0);
  CHECK(errno_text(EWOULDBLOCK).rfind("EAGAIN (", 0) == 0);
  CHECK(errno_text(99999).rfind("errno 99999 (", 0) == 0);
  const SystemError error("open(x)", ENOENT);
  CHECK(error.code() == ENOENT);
  CHECK(std::string(error.what()).rfind("open(x): ENOENT (", 0) == 0);
}

// A broken invariant of ours ends the process by SIGABRT, in releases too.
TEST_CASE("error: SF_CHECK stays on") {
  SF_CHECK(1 + 1 == 2);
  const pid_t child = test::fork_process();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    ::close(STDERR_FILENO);
    SF_CHECK(1 + 1 == 3);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

// The clock never goes back, and a span of never stays never however late it starts.
TEST_CASE("clock") {
  Nanos last = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const Nanos now = now_ns();
    REQUIRE(now >= last);
    last = now;
  }
  CHECK(deadline_after(last, kNever) == kNever);
  CHECK(deadline_after(last, kNever - last) == kNever);
  CHECK(deadline_after(last, kNever - last - 1) == kNever - 1);
  CHECK(deadline_after(5, 7) == 12);
  CHECK(deadline_after(0, kNever) == kNever);
}

// Seconds of any size become a span that can be added to now.
TEST_CASE("clock: from_seconds") {
  CHECK(from_seconds(0) == 0);
  CHECK(from_seconds(1.5) == 1500 * kMillisecond);
  CHECK(to_seconds(from_seconds(0.25)) == doctest::Approx(0.25));
  for (const double huge : {3e8, 1e300, std::numeric_limits<double>::infinity()}) {
    CHECK(from_seconds(huge) == 300'000'000 * kSecond);
    CHECK(deadline_after(now_ns(), from_seconds(huge)) > now_ns());
  }
  CHECK(from_seconds(std::nan("")) > 0);
  CHECK(from_seconds(-1) == -kSecond);
}

// Sizes and names belong to the codes that travel on the wire.
TEST_CASE("dtype") {
  CHECK(dtype_bytes(DType::kBool) == 1);
  CHECK(dtype_bytes(DType::kBFloat16) == 2);
  CHECK(dtype_bytes(DType::kComplex64) == 8);
  CHECK(std::string(dtype_name(DType::kComplex64)) == "complex64");
  CHECK(static_cast<int>(DType::kComplex64) + 1 == kDTypeCount);
  CHECK(std::string(op_name(ReduceOp::kProd)) == "prod");
}

// A bell once rung is heard until it is silenced, however often it was rung, and never blocks.
TEST_CASE("bell") {
  const Bell bell;
  CHECK_FALSE(is_readable(bell.fd()));
  bell.ring();
  CHECK(is_readable(bell.fd()));
  for (int i = 0; i < 200'000; ++i) bell.ring();
  bell.silence();
  CHECK_FALSE(is_readable(bell.fd()));
  bell.silence();
  bell.ring();
  CHECK(is_readable(bell.fd()));
  CHECK((fcntl(bell.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((fcntl(bell.ring_fd(), F_GETFD) & FD_CLOEXEC) != 0);
}

namespace {

struct Left final : ForkSensitive {
  Left() { enlist(NoFork()); }
  ~Left() override { resign(NoFork()); }
  void abandon() override { is_abandoned = true; }
  bool is_abandoned = false;
};

}  // namespace

// In the child of a fork, and only there, what is alive is abandoned; what was destroyed is not.
TEST_CASE("fork: the child abandons") {
  Left living;
  {
    const Left dead;
  }
  const pid_t child = test::fork_process();
  if (child == 0) {
    Left made_in_child;
    _exit(living.is_abandoned && !made_in_child.is_abandoned ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK_FALSE(living.is_abandoned);
}

// Whichever word differs, in full steps or behind them, the digest differs; so it does where two
// words change places.
TEST_CASE("digest: any word") {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  for (const std::size_t bytes : {8ul, 40ul, 128ul, 136ul, 256ul, 500ul}) {
    CAPTURE(bytes);
    const std::vector<std::byte> data = test::pattern(bytes, 7);
    const std::uint64_t digest = digest_of(data.data(), bytes);
    CHECK(digest == digest_of(data.data(), bytes));
    for (std::size_t at = 0; at < bytes; at += kWord) {
      CAPTURE(at);
      for (int bit = 0; bit < 8; ++bit) {
        std::vector<std::byte> other = data;
        other[std::min(at + static_cast<std::size_t>(bit), bytes - 1)] ^= std::byte{1} << bit;
        CHECK(digest_of(other.data(), bytes) != digest);
      }
      if (at + 2 * kWord > bytes) continue;
      std::vector<std::byte> swapped = data;
      std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(at),
                       swapped.begin() + static_cast<std::ptrdiff_t>(at + kWord),
                       swapped.begin() + static_cast<std::ptrdiff_t>(at + kWord));
      CHECK(digest_of(swapped.data(), bytes) != digest);
    }
  }
}

// In pieces of whole steps it is the same as at once.
TEST_CASE("digest: in pieces") {
  const std::vector<std::byte> data = test::pattern(5 * Digest::kStep + 77, 3);
  for (std::size_t cut = 0; cut <= 5; ++cut) {
    const std::size_t first = cut * Digest::kStep;
    Digest digest;
    digest.add(data.data(), first);
    digest.add(data.data() + first, data.size() - first);
    CHECK(digest.value() == digest_of(data.data(), data.size()));
  }
}

}  // namespace standfast
