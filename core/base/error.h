// What the system refused, as text with the call and the errno's name; and the assert that stays
// on.
#pragma once

#include <stdexcept>
#include <string>

namespace standfast {

// "ECONNRESET (Connection reset by peer)".
std::string errno_text(int code);

// Set-up failures only: nothing that runs during an operation throws.
class SystemError : public std::runtime_error {
 public:
  SystemError(const std::string& call, int code)
      : std::runtime_error(call + ": " + errno_text(code)), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace standfast

// An invariant of ours. Stays on in releases: a wrong result is worse than an end.
#define SF_CHECK(condition) \
  ((condition) ? void(0) : ::standfast::check_failed(#condition, __FILE__, __LINE__))
