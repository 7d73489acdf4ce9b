// What this machine allows: the physical limits that any collective library on it lives with.
// Linux, two cores. Built and run by limits.py: one JSON object per line on stdout. One file on
// purpose: it stands alone, so that it can be copied to a machine and compiled there by itself.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  kSamples = 20000,
  kCoreA = 0,  // this process
  kCoreB = 1,  // its child
  kPage = 4096,
};
static const size_t kMiB = 1 << 20;

static double samples[kSamples];

// Two words that two processes write in turn, far enough apart not to share a cache line.
struct Words {
  _Alignas(128) _Atomic uint32_t ping;
  _Alignas(128) _Atomic uint32_t pong;
};

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// A limit that could not be measured must not look like a measured one.
static long checked(long result, const char* call) {
  if (result < 0) {
    perror(call);
    exit(1);
  }
  return result;
}

static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  checked(sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

static pid_t child(void) { return (pid_t)checked(fork(), "fork"); }

static void* mapped(size_t bytes, int flags) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) checked(-1, "mmap");
  return memory;
}

static void* shared(size_t bytes) { return mapped(bytes, MAP_SHARED); }

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void report(const char* name, int count, double scale, const char* unit) {
  qsort(samples, (size_t)count, sizeof *samples, ascending);
  printf(
      "{\"name\": \"%s\", \"unit\": \"%s\", \"n\": %d, \"min\": %.6g, \"median\": %.6g, "
      "\"p99\": %.6g, \"max\": %.6g}\n",
      name, unit, count, samples[0] * scale, samples[count / 2] * scale,
      samples[(int)(count * 0.99)] * scale, samples[count - 1] * scale);
  fflush(stdout);
}

static void report_us(const char* name, int count) { report(name, count, 1e6, "us"); }
static void report_gb_s(const char* name, int count) { report(name, count, 1e-9, "GB/s"); }

static bool try_again(void) { return errno == EAGAIN || errno == EINTR; }

static void read_all(int fd, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = read(fd, to, bytes);
    if (got < 0 && try_again()) continue;
    if (got <= 0) checked(-1, "read");
    to += got;
    bytes -= (size_t)got;
  }
}

static void write_all(int fd, const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t put = write(fd, from, bytes);
    if (put < 0 && try_again()) continue;
    checked(put, "write");
    from += put;
    bytes -= (size_t)put;
  }
}

static void tcp_pair(int ends[2]) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  const int one = 1;
  const int listener = (int)checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
  checked(bind(listener, (void*)&address, sizeof address), "bind");
  checked(listen(listener, 1), "listen");
  checked(getsockname(listener, (void*)&address, &length), "getsockname");
  ends[0] = (int)checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
  checked(connect(ends[0], (void*)&address, sizeof address), "connect");
  ends[1] = (int)checked(accept(listener, NULL, NULL), "accept");
  close(listener);
  for (int i = 0; i < 2; i++) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// --- latency: how long a message of nothing takes
// -------------------------------------------------

static void shm_ping_pong(void) {
  enum { kRoundTripsPerSample = 10 };
  struct Words* words = shared(sizeof *words);
  const uint32_t all = kSamples * kRoundTripsPerSample;
  const pid_t peer = child();
  if (peer == 0) {
    pin(kCoreB);
    for (uint32_t i = 1; i <= all; i++) {
      while (atomic_load_explicit(&words->ping, memory_order_acquire) != i) continue;
      atomic_store_explicit(&words->pong, i, memory_order_release);
    }
    _exit(0);
  }
  pin(kCoreA);
  uint32_t i = 0;
  for (int sample = 0; sample < kSamples; sample++) {
    const double begin = now_s();
    for (int j = 0; j < kRoundTripsPerSample; j++) {
      atomic_store_explicit(&words->ping, ++i, memory_order_release);
      while (atomic_load_explicit(&words->pong, memory_order_acquire) != i) continue;
    }
    samples[sample] = (now_s() - begin) / kRoundTripsPerSample;
  }
  waitpid(peer, NULL, 0);
  munmap(words, sizeof *words);
  report_us("shm spin ping-pong, 8 B, round trip", kSamples);
}

// Which descriptors the two processes of a ping-pong write to and read from.
struct Ends {
  int write_here, read_here, read_there, write_there;
};

struct PingPong {
  size_t bytes;
  int count;
  int core_there;
  bool busy_polling;
};

static void fd_ping_pong(const char* name, struct Ends ends, struct PingPong how) {
  char* buffer = malloc(how.bytes);
  memset(buffer, 1, how.bytes);
  if (how.busy_polling) {
    fcntl(ends.read_here, F_SETFL, O_NONBLOCK);
    fcntl(ends.read_there, F_SETFL, O_NONBLOCK);
  }
  const pid_t peer = child();
  if (peer == 0) {
    pin(how.core_there);
    for (int i = 0; i < how.count; i++) {
      read_all(ends.read_there, buffer, how.bytes);
      write_all(ends.write_there, buffer, how.bytes);
    }
    _exit(0);
  }
  pin(kCoreA);
  for (int i = 0; i < how.count; i++) {
    const double begin = now_s();
    write_all(ends.write_here, buffer, how.bytes);
    read_all(ends.read_here, buffer, how.bytes);
    samples[i] = now_s() - begin;
  }
  waitpid(peer, NULL, 0);
  report_us(name, how.count);
  free(buffer);
}

static struct Ends tcp_ends(void) {
  int ends[2];
  tcp_pair(ends);
  return (struct Ends){ends[0], ends[0], ends[1], ends[1]};
}

static struct Ends unix_ends(void) {
  int ends[2];
  checked(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  return (struct Ends){ends[0], ends[0], ends[1], ends[1]};
}

static struct Ends pipe_ends(void) {
  int there[2], back[2];
  checked(pipe(there), "pipe");
  checked(pipe(back), "pipe");
  return (struct Ends){there[1], back[0], there[0], back[1]};
}

static struct Ends eventfd_ends(void) {
  const int there = (int)checked(eventfd(0, 0), "eventfd");
  const int back = (int)checked(eventfd(0, 0), "eventfd");
  return (struct Ends){there, back, there, back};
}

static void futex_set(_Atomic uint32_t* word, uint32_t value) {
  atomic_store(word, value);
  syscall(SYS_futex, word, FUTEX_WAKE, 1, 0, 0, 0);
}

static void futex_await(_Atomic uint32_t* word, uint32_t value) {
  while (atomic_load(word) != value) syscall(SYS_futex, word, FUTEX_WAIT, value - 1, 0, 0, 0);
}

static void futex_ping_pong(void) {
  struct Words* words = shared(sizeof *words);
  const pid_t peer = child();
  if (peer == 0) {
    pin(kCoreB);
    for (uint32_t i = 1; i <= kSamples; i++) {
      futex_await(&words->ping, i);
      futex_set(&words->pong, i);
    }
    _exit(0);
  }
  pin(kCoreA);
  for (uint32_t i = 1; i <= kSamples; i++) {
    const double begin = now_s();
    futex_set(&words->ping, i);
    futex_await(&words->pong, i);
    samples[i - 1] = now_s() - begin;
  }
  waitpid(peer, NULL, 0);
  munmap(words, sizeof *words);
  report_us("futex ping-pong, two cores, round trip (two wake-ups)", kSamples);
}

static void latencies(void) {
  const struct PingPong small = {8, kSamples, kCoreB, false};
  const struct PingPong busy = {8, kSamples, kCoreB, true};
  const struct PingPong big = {kMiB, 500, kCoreB, false};
  const struct PingPong same_core = {8, kSamples, kCoreA, false};
  shm_ping_pong();
  fd_ping_pong("loopback TCP ping-pong, 8 B, blocking, round trip", tcp_ends(), small);
  fd_ping_pong("loopback TCP ping-pong, 8 B, busy polling, round trip", tcp_ends(), busy);
  fd_ping_pong("loopback TCP ping-pong, 1 MiB, blocking, round trip", tcp_ends(), big);
  fd_ping_pong("unix socket ping-pong, 8 B, blocking, round trip", unix_ends(), small);
  fd_ping_pong("pipe ping-pong, 8 B, blocking, round trip (two wake-ups)", pipe_ends(), small);
  fd_ping_pong("pipe ping-pong, same core, round trip", pipe_ends(), same_core);
  fd_ping_pong("eventfd ping-pong, blocking, round trip (two wake-ups)", eventfd_ends(), small);
  futex_ping_pong();
}

// --- bandwidth
// ------------------------------------------------------------------------------------

static void tcp_stream(void) {
  enum { kStreams = 7 };
  const size_t total = 1024 * kMiB;
  char* buffer = malloc(kMiB);
  memset(buffer, 1, kMiB);
  for (int stream = 0; stream < kStreams; stream++) {
    int ends[2];
    tcp_pair(ends);
    const pid_t sender = child();
    if (sender == 0) {
      pin(kCoreB);
      for (size_t sent = 0; sent < total; sent += kMiB) write_all(ends[1], buffer, kMiB);
      _exit(0);
    }
    pin(kCoreA);
    read_all(ends[0], buffer, kMiB);
    const double begin = now_s();
    for (size_t got = kMiB; got < total; got += kMiB) read_all(ends[0], buffer, kMiB);
    samples[stream] = (double)(total - kMiB) / (now_s() - begin);
    waitpid(sender, NULL, 0);
    close(ends[0]);
    close(ends[1]);
  }
  free(buffer);
  report_gb_s("loopback TCP stream, 1 MiB writes", kStreams);
}

static float* ones(size_t bytes) {
  float* memory = aligned_alloc(kPage, bytes);
  for (size_t i = 0; i < bytes / sizeof *memory; i++) memory[i] = 1;
  return memory;
}

static void copies(const char* name, float* to, const float* from, size_t bytes, int count) {
  for (int i = 0; i < count; i++) {
    const double begin = now_s();
    memcpy(to, from, bytes);
    samples[i] = (double)bytes / (now_s() - begin);
  }
  report_gb_s(name, count);
}

static void additions(float* restrict to, const float* restrict from, size_t bytes) {
  enum { kCount = 25 };
  for (int sample = 0; sample < kCount; sample++) {
    const double begin = now_s();
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] += from[i];
    samples[sample] = (double)bytes / (now_s() - begin);
    if (to[5] < 0) puts("");  // so that the compiler keeps the loop
  }
  report_gb_s("float32 a += b, 64 MiB, bytes of b", kCount);
}

static void copies_on_both_cores(float* to, const float* from, size_t bytes) {
  enum { kRounds = 15, kCopies = 5 };
  _Atomic int* arrived = shared(kPage);
  double* rates = shared(kPage);
  const pid_t peer = child();
  const int mine = peer == 0;
  pin(mine ? kCoreB : kCoreA);
  for (int round = 0; round < kRounds; round++) {
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2 * (round + 1)) continue;
    const double begin = now_s();
    for (int i = 0; i < kCopies; i++) memcpy(to, from, bytes);
    rates[2 * round + mine] = kCopies * (double)bytes / (now_s() - begin);
  }
  if (peer == 0) _exit(0);
  waitpid(peer, NULL, 0);
  for (int round = 0; round < kRounds; round++) {
    samples[round] = rates[2 * round] + rates[2 * round + 1];
  }
  report_gb_s("memcpy 64 MiB on both cores at once, sum", kRounds);
}

// One copy from another process's memory instead of two through a shared segment.
static void reads_of_another_process(float* to, size_t bytes) {
  enum { kCount = 25 };
  char* _Atomic* address = shared(kPage);
  const pid_t peer = child();
  if (peer == 0) {
    char* memory = malloc(bytes);
    memset(memory, 2, bytes);
    atomic_store(address, memory);
    pause();
    _exit(0);
  }
  while (atomic_load(address) == NULL) usleep(100);
  struct iovec here = {to, bytes}, there = {atomic_load(address), bytes};
  bool allowed = true;
  for (int i = 0; i < kCount; i++) {
    const double begin = now_s();
    allowed &= process_vm_readv(peer, &here, 1, &there, 1, 0) == (ssize_t)bytes;
    samples[i] = (double)bytes / (now_s() - begin);
  }
  kill(peer, SIGKILL);
  waitpid(peer, NULL, 0);
  if (allowed) report_gb_s("process_vm_readv 64 MiB", kCount);
}

static void bandwidths(void) {
  const size_t bytes = 64 * kMiB;
  float *a = ones(bytes), *b = ones(bytes);
  tcp_stream();
  pin(kCoreA);
  copies("memcpy 64 MiB, bytes copied", a, b, bytes, 25);
  additions(a, b, bytes);
  copies("memcpy 256 KiB (in L2)", a, b, kMiB / 4, 500);
  copies_on_both_cores(a, b, bytes);
  reads_of_another_process(a, bytes);
  free(a);
  free(b);
}

// --- death: how soon after SIGKILL another process can know
// ---------------------------------------

enum Sign { kTcpEnd, kPidfd };

struct Victim {
  size_t touched_mib;  // its memory is taken apart before its sockets are closed
  bool spinning;
};

static void touch(size_t mib) {
  if (mib > 0) mapped(mib * kMiB, MAP_PRIVATE | MAP_POPULATE);
}

static void await_byte(int fd) {
  char byte;
  read_all(fd, &byte, 1);
  close(fd);
}

static double one_death_s(enum Sign sign, struct Victim how) {
  int ends[2], ready[2];
  tcp_pair(ends);
  checked(pipe(ready), "pipe");
  const pid_t victim = child();
  if (victim == 0) {
    pin(kCoreB);
    close(ends[0]);
    touch(how.touched_mib);
    write_all(ready[1], "x", 1);
    while (how.spinning) continue;
    pause();
    _exit(0);
  }
  pin(kCoreA);
  close(ends[1]);
  close(ready[1]);
  await_byte(ready[0]);
  usleep(3000);
  struct pollfd watched = {.fd = ends[0], .events = POLLIN | POLLRDHUP};
  if (sign == kPidfd) watched.fd = (int)checked(syscall(SYS_pidfd_open, victim, 0), "pidfd_open");
  const double begin = now_s();
  kill(victim, SIGKILL);
  poll(&watched, 1, 20000);
  const double seen_s = now_s() - begin;
  waitpid(victim, NULL, 0);
  if (sign == kPidfd) close(watched.fd);
  close(ends[0]);
  return seen_s;
}

static void deaths(const char* name, enum Sign sign, struct Victim how, int count) {
  for (int i = 0; i < count; i++) samples[i] = one_death_s(sign, how);
  report_us(name, count);
}

struct Beacon {
  pthread_mutex_t mutex;
  double killed_s;
};

static struct Beacon* new_beacon(void) {
  struct Beacon* beacon = shared(sizeof *beacon);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&beacon->mutex, &attributes);
  return beacon;
}

// A robust mutex that the victim holds is passed on (EOWNERDEAD) before its memory is taken apart.
// The kill comes from a third process, because this one is asleep in the lock by then.
static double one_passed_on_s(size_t touched_mib) {
  struct Beacon* beacon = new_beacon();
  int ready[2];
  checked(pipe(ready), "pipe");
  const pid_t victim = child();
  if (victim == 0) {
    pin(kCoreB);
    touch(touched_mib);
    pthread_mutex_lock(&beacon->mutex);
    write_all(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  close(ready[1]);
  await_byte(ready[0]);
  const pid_t killer = child();
  if (killer == 0) {
    pin(kCoreB);
    usleep(3000);
    beacon->killed_s = now_s();
    kill(victim, SIGKILL);
    _exit(0);
  }
  pin(kCoreA);
  const int outcome = pthread_mutex_lock(&beacon->mutex);
  const double seen_s = now_s() - beacon->killed_s;
  if (outcome != EOWNERDEAD) fprintf(stderr, "pthread_mutex_lock: unexpected %d\n", outcome);
  waitpid(victim, NULL, 0);
  waitpid(killer, NULL, 0);
  munmap(beacon, sizeof *beacon);
  return seen_s;
}

static void mutexes_passed_on(const char* name, size_t touched_mib, int count) {
  for (int i = 0; i < count; i++) samples[i] = one_passed_on_s(touched_mib);
  report_us(name, count);
}

static void death_signs(void) {
  const struct Victim sleeping = {0, false}, spinning = {0, true};
  const struct Victim small = {100, false}, large = {1000, false}, huge = {4000, false};
  deaths("SIGKILL to TCP EOF in poll(), sleeping victim", kTcpEnd, sleeping, 50);
  deaths("SIGKILL to TCP EOF in poll(), spinning victim", kTcpEnd, spinning, 50);
  deaths("SIGKILL to pidfd readable, sleeping victim", kPidfd, sleeping, 50);
  deaths("SIGKILL to TCP EOF, victim with 100 MB touched", kTcpEnd, small, 50);
  deaths("SIGKILL to TCP EOF, victim with 1 GB touched", kTcpEnd, large, 50);
  deaths("SIGKILL to pidfd readable, victim with 1 GB touched", kPidfd, large, 50);
  deaths("SIGKILL to TCP EOF, victim with 4 GB touched", kTcpEnd, huge, 10);
  mutexes_passed_on("SIGKILL to robust mutex EOWNERDEAD, sleeping victim", 0, 50);
  mutexes_passed_on("SIGKILL to robust mutex EOWNERDEAD, victim with 1 GB touched", 1000, 50);
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  latencies();
  bandwidths();
  death_signs();
  return 0;
}
