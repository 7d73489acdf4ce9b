// The shared file of a fabric in this process's memory: making it, finding it, and what is where in
// it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "emulator/plan.h"
#include "emulator/state.h"

namespace standfast::emulator {

class Store {
 public:
  // Makes the state of the fabric file's text, or finds what another process has made. Throws
  // std::invalid_argument for a file that is wrong, and std::system_error.
  static std::unique_ptr<Store> open(const std::string& fabric_path);

  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  const std::string& path() const { return path_; }
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  const char* host(std::size_t index) const;
  Cable& cable(std::size_t index) const;
  Port& port(std::size_t index) const;
  Endpoint& endpoint(std::size_t port, std::size_t slot) const;
  std::byte* arena(std::size_t port, std::size_t slot) const;

  int find_host(std::string_view name) const;
  int find_cable(std::string_view name) const;
  // "HOST:DEVICE".
  int find_port(std::string_view name) const;
  std::string port_name(std::size_t index) const;

  // A local address on InfiniBand; else 0.
  std::uint16_t lid(std::size_t port) const;

  // The port's state as a program sees it.
  bool is_active(const Port& port) const;

  // Appends a line to a file beside the fabric file; whole, whoever else does the same.
  void append(const char* ending, std::string_view line) const;
  // What a program did wrong, for the test that looks at it: into the file of reports.
  void report(std::string_view line) const { append(".reports", line); }

 private:
  Store(std::string path, std::byte* base) : path_(std::move(path)), base_(base) {}

  std::string path_;
  std::byte* base_;
};

}  // namespace standfast::emulator
