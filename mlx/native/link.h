// One group's core, as MLX's threads use it: runs operations, and turns a failure into an exception
// with standfast's text. Any thread; never waits for the GIL without a limit.
#pragma once

#include <mlx/array.h>
#include <standfast/native.h>

#include <memory>
#include <string>
#include <vector>

namespace standfast_mlx {

// Python's answer to "what is this failure called": (serial, failure, operation, array) -> text.
void learn_teller(void* callable);

class Link {
 public:
  // Throws std::runtime_error for a table of another version.
  Link(const standfast_native& table, long serial);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int rank() const { return table_.rank; }
  int size() const { return table_.size; }
  // By which Python knows the group.
  long serial() const { return serial_; }
  // The serials of links that neither a group of MLX's nor a task under way has had since the last
  // call.
  static std::vector<long> released();

  // Throws std::runtime_error with the reason in words.
  void run(const standfast_operation& operation, const char* name,
           const mlx::core::Shape& shape) const;

 private:
  standfast_native table_;
  long serial_;
};

int dtype_code(mlx::core::Dtype dtype);

}  // namespace standfast_mlx
