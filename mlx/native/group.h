// What MLX calls: a group implementation whose collectives run on a standfast group. Operations are
// put into the stream that MLX chose, and run there, in its thread.
#pragma once

#include <mlx/distributed/distributed_impl.h>

#include <memory>

#include "link.h"

namespace standfast_mlx {

// Python's split: (serial, color, key) -> a Group of MLX's.
void learn_splitter(void* callable);

class Group final : public mlx::core::distributed::detail::GroupImpl {
 public:
  explicit Group(std::shared_ptr<const Link> link);
  ~Group() override;

  // Null for a group that is not of this class.
  static const Group* of(const mlx::core::distributed::Group& group);
  long serial() const { return link_->serial(); }

  mlx::core::Stream communication_stream(mlx::core::StreamOrDevice s) override;
  int rank() override { return link_->rank(); }
  int size() override { return link_->size(); }
  std::shared_ptr<GroupImpl> split(int color, int key) override;

  void all_sum(const mlx::core::array& in, mlx::core::array& out, mlx::core::Stream s) override;
  void all_max(const mlx::core::array& in, mlx::core::array& out, mlx::core::Stream s) override;
  void all_min(const mlx::core::array& in, mlx::core::array& out, mlx::core::Stream s) override;
  void all_gather(const mlx::core::array& in, mlx::core::array& out, mlx::core::Stream s) override;
  void sum_scatter(const mlx::core::array& in, mlx::core::array& out, mlx::core::Stream s) override;
  void send(const mlx::core::array& in, int dst, mlx::core::Stream s) override;
  void recv(mlx::core::array& out, int src, mlx::core::Stream s) override;

 private:
  std::shared_ptr<const Link> link_;  // shared with what is under way
};

}  // namespace standfast_mlx
