#include "core/control/sentinel_linux.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>

#include "core/base/error.h"

namespace standfast {
namespace {

void check(int code, const char* call) {
  if (code != 0) throw SystemError(call, code);
}

// What is done in the new process before the program runs.
class Preparation {
 public:
  Preparation() {
    check(posix_spawn_file_actions_init(&files), "posix_spawn_file_actions_init");
    check(posix_spawnattr_init(&attributes), "posix_spawnattr_init");
  }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;
  ~Preparation() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }

  // A descriptor that is duplicated onto itself is one that stays open.
  void keep(int fd) {
    check(posix_spawn_file_actions_adddup2(&files, fd, fd), "posix_spawn_file_actions_adddup2");
  }

  // Out of reach of what ends the rank: Ctrl-C, and a SIGKILL to its process group.
  void set_apart() {
    sigset_t all;
    sigfillset(&all);
    check(posix_spawnattr_setsigmask(&attributes, &all), "posix_spawnattr_setsigmask");
    check(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK),
          "posix_spawnattr_setflags");
  }

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

std::string as_hex(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

}  // namespace

Sentinel::Sentinel(const std::string& program, int memory, int rank, const std::vector<int>& links,
                   const std::vector<std::byte>& last_words) {
  Preparation preparation;
  preparation.keep(memory);
  for (const int link : links) preparation.keep(link);
  preparation.set_apart();
  std::string words[] = {"standfast-sentinel", std::to_string(memory), std::to_string(rank),
                         joined(links), as_hex(last_words)};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(),
                       words[3].data(), words[4].data(), nullptr};
  char* no_environment[] = {nullptr};
  // Never fork: that would copy the page tables of a rank that may hold a model.
  const int code = posix_spawn(&pid_, program.c_str(), &preparation.files, &preparation.attributes,
                               arguments, no_environment);
  if (code != 0) throw SystemError("posix_spawn(" + program + ")", code);
}

Sentinel::~Sentinel() {
  // It ends by itself; the signal is for one that is stopped. As long as it was not reaped, by a
  // program that waits for any child, say, the number is its own.
  if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace standfast
