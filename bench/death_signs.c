// How soon after SIGKILL another process can know at all: what any failure detector on this machine
// lives with. Linux, two cores. Built and run by death_signs.py: one JSON object per line on stdout.
// One file on purpose: it stands alone, so that it can be copied to a machine and compiled there.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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
  death_signs();
  return 0;
}
