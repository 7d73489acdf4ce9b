// A first-in first-out queue of a fixed most, without an allocation per element.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace standfast::emulator {

template <typename T>
class RingQueue {
 public:
  RingQueue() = default;
  explicit RingQueue(std::size_t most) : items_(most) {}

  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == items_.size(); }
  std::size_t size() const { return size_; }
  T& front() { return items_[first_]; }

  // Not when full.
  T& push(T item) {
    T& place = items_[(first_ + size_) % items_.size()];
    place = std::move(item);
    ++size_;
    return place;
  }

  // Not when empty.
  T pop() {
    T item = std::move(items_[first_]);
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace standfast::emulator
