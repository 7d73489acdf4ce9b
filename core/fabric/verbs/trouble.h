// What is wrong with RDMA here, in words and with a code for machines. Set-up throws it; nothing
// that runs during an operation does.
#pragma once

#include <stdexcept>
#include <string>

#include "core/fabric/verbs/abi.h"

namespace standfast::verbs {

// `code` names the case and never changes: programs compare it. `device` is empty where no device
// is meant; `error` is the number that the library gave, 0 if it gave none.
struct Trouble {
  std::string code;
  std::string text;
  std::string hint;
  std::string device;
  int error = 0;
};

class VerbsError : public std::runtime_error {
 public:
  explicit VerbsError(Trouble trouble)
      : std::runtime_error(trouble.text), trouble_(std::move(trouble)) {}
  const Trouble& trouble() const { return trouble_; }

 private:
  Trouble trouble_;
};

// Where a queue pair was to lead, for messages: "rank 2 (10.0.0.3, rdma_en4)".
struct Target {
  std::string device;  // ours
  std::string peer;
};

// Numbers are Apple's on every system: librdma gives Darwin's raw values (60 and 102 mean other
// things on Linux). Which of the meanings below hold on hardware could not be checked here; they
// are those that users of Apple's stack report.
const char* port_state_name(PortState state);
std::string number_text(int error);
std::string wc_status_text(WcStatus status);

Trouble no_domain(const std::string& device, PortState state, int error);
Trouble no_queue_pair(const std::string& device, QpType type, int error);
Trouble no_transition(const Target& target, const char* state, int error);
// A call that has no meanings of its own.
Trouble refused(const std::string& device, const char* what, const char* call, int error);

}  // namespace standfast::verbs
