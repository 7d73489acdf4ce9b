// Adds up what the ranks of a mesh send, in one order, whatever comes first. Pure but for memory.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/dtype.h"
#include "core/jaccl/elements.h"
#include "core/jaccl/sizes.h"

namespace standfast::jaccl {

// Combines the contributions of all ranks to a range, message by message, always in one order.
class Sum {
 public:
  struct Parts {
    std::vector<int> order;          // of ranks
    int own = 0;                     // which of them is this one
    const std::byte* src = nullptr;  // its contribution
    std::byte* dst = nullptr;
    std::size_t bytes = 0;
    std::size_t message = 0;
    DType dtype{};
    CombineFn combine = nullptr;
    // Where dst is src: partial results, and whether a message's bytes are not needed any more.
    std::byte* partial = nullptr;
    std::function<bool(std::size_t index)> may_overwrite = nullptr;
  };
  explicit Sum(Parts parts) : parts_(std::move(parts)) {}

  // False if others come first.
  bool take(int rank, std::size_t index, const std::byte* from) {
    if (index != index_ || rank != next_peer()) return false;
    const bool is_last = at_ + 1 + (is_own(at_) || is_own(at_ + 1)) == parts_.order.size();
    if (is_last && parts_.may_overwrite && !parts_.may_overwrite(index)) return false;
    add(from);
    if (at_ == parts_.order.size()) finish();
    return true;
  }
  // Messages whose result lies in dst.
  std::size_t finished() const { return index_; }

 private:
  bool is_own(std::size_t at) const {
    return at < parts_.order.size() && parts_.order[at] == parts_.own;
  }
  int next_peer() const { return parts_.order[at_ + is_own(at_)]; }
  Range here() const { return piece({0, parts_.bytes}, parts_.message, index_); }

  // This rank's own contribution is there whenever its turn comes.
  void add(const std::byte* from) {
    const Range range = here();
    const std::size_t count = range.bytes / dtype_bytes(parts_.dtype);
    const std::byte* own = parts_.src + range.begin;
    std::byte* to = parts_.partial != nullptr ? parts_.partial : parts_.dst + range.begin;
    const auto combine = [&](const std::byte* a, const std::byte* b) {
      parts_.combine(to, a, b, count, parts_.dtype);
    };
    if (is_own(at_)) {
      combine(own, from);
      at_ += 2;
      return;
    }
    const bool is_first = at_++ == 0;
    if (is_first && is_own(at_)) {
      combine(from, own);
      ++at_;
    } else if (is_first) {
      copy_bytes(to, from, range.bytes);
    } else {
      combine(to, from);
      if (is_own(at_)) {
        combine(to, own);
        ++at_;
      }
    }
  }

  void finish() {
    const Range range = here();
    if (parts_.partial != nullptr) {
      copy_bytes(parts_.dst + range.begin, parts_.partial, range.bytes);
    }
    at_ = 0;
    ++index_;
  }

  const Parts parts_;
  std::size_t index_ = 0;
  std::size_t at_ = 0;
};

}  // namespace standfast::jaccl
