// How JACCL cuts operations into messages, combines elements, and what our stamps say: pure parts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "core/base/bytes.h"
#include "core/jaccl/elements.h"
#include "core/jaccl/sizes.h"
#include "core/jaccl/stamp.h"
#include "core/jaccl/sum.h"

namespace standfast::jaccl {
namespace {

constexpr std::size_t kKib = 1024;

template <class T>
std::vector<T> combined(ReduceOp op, DType dtype, const std::vector<T>& a,
                        const std::vector<T>& b) {
  std::vector<T> result(a.size());
  combine_fn(op, dtype)(as_bytes(result.data()), as_bytes(a.data()), as_bytes(b.data()), a.size(),
                        dtype);
  return result;
}

TEST_CASE("jaccl: the size of messages is that of both regimes") {
  struct Row {
    std::size_t bytes;
    std::size_t large;
  };
  for (const Row& row : {Row{1, 4 * kKib}, Row{4 * kKib, 4 * kKib}, Row{8 * kKib - 1, 4 * kKib},
                         Row{8 * kKib, 8 * kKib}, Row{16 * kKib - 1, 8 * kKib},
                         Row{100'000, 64 * kKib}, Row{512 * kKib - 1, 256 * kKib},
                         Row{512 * kKib, 512 * kKib}, Row{std::size_t{1} << 30, 512 * kKib}}) {
    CHECK(message_bytes(Frames::kLarge, row.bytes) == row.large);
    CHECK(message_bytes(Frames::kFourKib, row.bytes) == 4 * kKib);
  }
  CHECK(cut(Frames::kLarge, 0).count == 0);
  CHECK(cut(Frames::kLarge, 100'000).count == 2);
  CHECK(cut(Frames::kFourKib, 100'000).count == 25);
}

TEST_CASE("jaccl: pieces cover a range, and no more") {
  const Range whole{1000, 10'000};
  std::size_t covered = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const Range part = piece(whole, 4096, i);
    CHECK(part.begin == 1000 + covered);
    covered += part.bytes;
  }
  CHECK(covered == 10'000);
  CHECK(piece(whole, 4096, 3).bytes == 0);
}

// Every byte of the buffer lies in exactly one slice.
void check_cover(const RingShare& share, int ranks) {
  std::vector<int> covered(share.total);
  for (int chunk = 0; chunk < ranks; ++chunk) {
    for (int direction = 0; direction < share.directions; ++direction) {
      for (int wire = 0; wire < share.wires; ++wire) {
        const Range range = share.of(chunk, direction, wire);
        REQUIRE(range.begin + range.bytes <= share.total);
        REQUIRE(range.bytes <= share.slice);
        for (std::size_t i = 0; i < range.bytes; ++i) ++covered[range.begin + i];
      }
    }
  }
  CHECK(std::count(covered.begin(), covered.end(), 1) == std::ssize(covered));
}

TEST_CASE("jaccl: a ring's slices cover the buffer once, for all small sizes") {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int wires = 1; wires <= 4; ++wires) {
      for (const std::size_t count : {1, 2, 3, 7, 8, 9, 40, 41, 8192, 8193, 8200, 9001}) {
        check_cover(share_reduction(count, 4, ranks, wires), ranks);
        check_cover(share_gather(count, ranks, wires), ranks);
        check_cover(share_scatter(count, 4, ranks, wires), ranks);
      }
    }
  }
}

TEST_CASE("jaccl: small reductions go one way over one cable") {
  CHECK(share_reduction(8192, 4, 2, 2).directions == 1);
  CHECK(share_reduction(8193, 4, 2, 2).directions == 2);
  CHECK(share_reduction(8193, 4, 2, 2).wires == 2);
  CHECK(share_scatter(16'384, 4, 2, 2).wires == 1);
  CHECK(share_scatter(16'384, 4, 2, 2).directions == 2);
  CHECK(share_scatter(16'385, 4, 2, 2).wires == 2);
  CHECK(share_gather(1, 2, 3).wires == 3);
}

TEST_CASE("jaccl: max and min are a > b ? a : b and a < b ? a : b, NaN included") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {1, nan, 3, -0.0F, 0.0F};
  const std::vector<float> b = {2, 5, nan, 0.0F, -0.0F};
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    const auto result = combined(op, DType::kFloat32, a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const float wanted = (op == ReduceOp::kMax ? a[i] > b[i] : a[i] < b[i]) ? a[i] : b[i];
      CHECK(std::memcmp(&result[i], &wanted, sizeof wanted) == 0);
    }
  }
}

TEST_CASE("jaccl: floats of 16 bits are compared as numbers") {
  // bfloat16: 1, -1, 2, -2, NaN, -0.
  const std::vector<std::uint16_t> a = {0x3f80, 0xbf80, 0x4000, 0xc000, 0x7fc0, 0x8000};
  const std::vector<std::uint16_t> b = {0xbf80, 0x3f80, 0x3f80, 0xbf80, 0x3f80, 0x0000};
  CHECK(combined(ReduceOp::kMax, DType::kBFloat16, a, b) ==
        std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x4000, 0xbf80, 0x3f80, 0x0000});
  CHECK(combined(ReduceOp::kMin, DType::kBFloat16, a, b) ==
        std::vector<std::uint16_t>{0xbf80, 0xbf80, 0x3f80, 0xc000, 0x3f80, 0x0000});
  // float16: 65504 and infinity.
  CHECK(combined<std::uint16_t>(ReduceOp::kMax, DType::kFloat16, {0x7bff}, {0x7c00}) ==
        std::vector<std::uint16_t>{0x7c00});
}

TEST_CASE("jaccl: sums of every dtype; products are not JACCL's") {
  CHECK(combined<std::int32_t>(ReduceOp::kSum, DType::kInt32, {1, 2147483647}, {2, 1}) ==
        std::vector<std::int32_t>{3, -2147483647 - 1});
  CHECK(combined<std::uint16_t>(ReduceOp::kSum, DType::kBFloat16, {0x3f80}, {0x4000}) ==
        std::vector<std::uint16_t>{0x4040});
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    const auto has = [type](ReduceOp op) { return combine_fn(op, type) != nullptr; };
    CHECK(has(ReduceOp::kSum));
    CHECK_FALSE(has(ReduceOp::kProd));
    CHECK(has(ReduceOp::kMax) == (type != DType::kComplex64));
    CHECK(has(ReduceOp::kMin) == (type != DType::kComplex64));
  }
}

// Takes what three peers sent, in any order of arrival, until there is no more.
void take_all(Sum& sum, const std::vector<std::vector<float>>& inputs, std::vector<int> arrivals,
              std::size_t count) {
  const std::size_t per_message = count / 2;
  for (std::size_t index = 0; index < 2; ++index) {
    std::size_t taken = 0;
    while (taken < arrivals.size()) {
      const std::size_t before = taken;
      for (const int rank : arrivals) {
        const auto& input = inputs[static_cast<std::size_t>(rank)];
        taken += sum.take(rank, index, as_bytes(input.data() + index * per_message));
      }
      REQUIRE(taken > before);
    }
  }
}

TEST_CASE("jaccl: a sum has one order, whatever arrives first, and in place too") {
  constexpr std::size_t kCount = 8;
  constexpr int kOwn = 1;
  // Sums that depend on their order.
  const std::vector<std::vector<float>> inputs = {
      std::vector<float>(kCount, 1e8F), std::vector<float>(kCount, 3.0F),
      std::vector<float>(kCount, -1e8F), std::vector<float>(kCount, 0.25F)};
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, {1, 0, 2, 3}, {3, 2, 1, 0}}) {
    float wanted = inputs[static_cast<std::size_t>(order[0])][0];
    for (std::size_t i = 1; i < order.size(); ++i) {
      wanted += inputs[static_cast<std::size_t>(order[i])][0];
    }
    std::vector<int> arrivals = {0, 2, 3};
    do {
      for (const bool in_place : {false, true}) {
        std::vector<float> own = inputs[kOwn];
        std::vector<float> result(kCount);
        std::vector<float> partial(kCount / 2);
        Sum::Parts parts;
        parts.order = order;
        parts.own = kOwn;
        parts.src = as_bytes(own.data());
        parts.dst = as_bytes(in_place ? own.data() : result.data());
        parts.bytes = kCount * sizeof(float);
        parts.message = parts.bytes / 2;
        parts.dtype = DType::kFloat32;
        parts.combine = combine_fn(ReduceOp::kSum, DType::kFloat32);
        if (in_place) parts.partial = as_bytes(partial.data());
        Sum sum(parts);
        take_all(sum, inputs, arrivals, kCount);
        CHECK(sum.finished() == 2);
        CHECK((in_place ? own : result) == std::vector<float>(kCount, wanted));
      }
    } while (std::next_permutation(arrivals.begin(), arrivals.end()));
  }
}

TEST_CASE("jaccl: a sum waits until what it would overwrite is sent") {
  std::vector<float> own = {1, 2};
  const std::vector<float> theirs = {10, 20};
  std::vector<float> partial(2);
  bool is_sent = false;
  Sum::Parts parts;
  parts.order = {0, 1};
  parts.src = parts.dst = as_bytes(own.data());
  parts.bytes = parts.message = sizeof(float) * 2;
  parts.dtype = DType::kFloat32;
  parts.combine = combine_fn(ReduceOp::kSum, DType::kFloat32);
  parts.partial = as_bytes(partial.data());
  parts.may_overwrite = [&](std::size_t) { return is_sent; };
  Sum sum(parts);
  CHECK_FALSE(sum.take(1, 0, as_bytes(theirs.data())));
  CHECK(own == std::vector<float>{1, 2});
  is_sent = true;
  CHECK(sum.take(1, 0, as_bytes(theirs.data())));
  CHECK(own == std::vector<float>{11, 22});
}

TEST_CASE("jaccl: a stamp lies at the end of the frame, where there is room") {
  CHECK(has_room_for_stamp(4096, 4072));
  CHECK_FALSE(has_room_for_stamp(4096, 4073));
  std::vector<std::byte> frame(4096);
  put_stamp(frame.data(), frame.size(), {kStampMagic, 12, 99});
  const Stamp stamp = stamp_of(frame.data(), frame.size());
  CHECK(stamp.magic == kStampMagic);
  CHECK(stamp.ordinal == 12);
  CHECK(stamp.operation == 99);
  CHECK(operation_digest(OpKind::kAllReduce, DType::kFloat32, ReduceOp::kSum, 7) !=
        operation_digest(OpKind::kAllReduce, DType::kFloat32, ReduceOp::kSum, 8));
}

}  // namespace
}  // namespace standfast::jaccl
