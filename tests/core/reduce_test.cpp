// The element loops against reduce_reference.h, bit for bit, on every instruction set this CPU has.
#include "core/reduce/reduce.h"

#include <doctest/doctest.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/reduce/isa.h"
#include "tests/core/reduce_inputs.h"
#include "tests/core/reduce_reference.h"

namespace standfast {
namespace {

using namespace reduce_inputs;
using reference::bits_at;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd};

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (int isa = 0; isa < kIsaCount; ++isa) {
    if (isa_available(static_cast<Isa>(isa))) isas.push_back(static_cast<Isa>(isa));
  }
  return isas;
}

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

std::string case_name(ReduceOp op, DType dtype) {
  return std::string(op_name(op)) + " of " + dtype_name(dtype) + ", seed " + std::to_string(kSeed);
}

template <class Check>
void for_each_case(Check check) {
  for (ReduceOp op : kOps) {
    for (int code = 0; code < kDTypeCount; ++code) {
      const DType dtype = static_cast<DType>(code);
      if (dtype == DType::kComplex64 && !rounds(op)) continue;
      const std::string name = case_name(op, dtype);
      INFO(name);
      check(op, dtype);
    }
  }
}

// One call: elements [start, start + count) of the first n sources, all misaligned; dst is source
// `aliased`, or its own memory if that is n.
struct Call {
  int n, aliased;
  std::size_t start, count, misalignment;
};

void check_call(ReduceFn reduce, DType dtype, const Call& call, const std::vector<Bytes>& sources,
                const Bytes& expected) {
  const std::size_t bytes = dtype_bytes(dtype), begin = call.start * bytes,
                    length = call.count * bytes;
  std::vector<Misaligned> memory;
  std::vector<const void*> srcs;
  for (int k = 0; k < call.n; ++k) {
    const std::size_t own = k == call.aliased ? 0 : static_cast<std::size_t>(k);
    memory.emplace_back(sources[static_cast<std::size_t>(k)].data() + begin, length,
                        call.misalignment + own);
  }
  memory.emplace_back(nullptr, length, call.misalignment);
  for (int k = 0; k < call.n; ++k) srcs.push_back(memory[static_cast<std::size_t>(k)].data());
  Misaligned& dst = memory[static_cast<std::size_t>(call.aliased)];
  reduce(dst.data(), srcs.data(), call.n, call.count);
  CAPTURE(call.n);
  CAPTURE(call.aliased);
  CAPTURE(call.start);
  CAPTURE(call.count);
  CAPTURE(call.misalignment);
  REQUIRE(dst.equals(expected.data() + begin));
  for (int k = 0; k <= call.n; ++k) {
    Misaligned& each = memory[static_cast<std::size_t>(k)];
    REQUIRE(each.guards_intact());
    if (k < call.n && k != call.aliased)
      REQUIRE(each.equals(sources[static_cast<std::size_t>(k)].data() + begin));
  }
}

TEST_CASE(
    "every path reduces 1 to 9 sources of every small size, at any alignment, in place or not") {
  for_each_case([](ReduceOp op, DType dtype) {
    const std::vector<Bytes> sources = random_sources(op, dtype, 230);
    for (int n = 1; n <= kSourcesMax; ++n) {
      const Bytes expected = reference::reduce(op, dtype, sources, n);
      for (Isa isa : available_isas()) {
        const std::string path = isa_name(isa);
        CAPTURE(path);
        const ReduceFn reduce = reduce_fn_for(isa, op, dtype);
        const bool present = reduce != nullptr;
        REQUIRE(present);
        for (std::size_t count = 0; count <= 130; ++count) {
          const int aliased = static_cast<int>(count) % (n + 1);
          check_call(reduce, dtype, {n, n, count * 7 % 100, count, count % 11}, sources, expected);
          check_call(reduce, dtype, {n, aliased, count * 3 % 100, count, count % 5}, sources,
                     expected);
        }
      }
    }
  });
}

TEST_CASE("every path reduces large arrays, which are aligned first and handled in blocks") {
  for_each_case([](ReduceOp op, DType dtype) {
    const std::vector<Bytes> sources = random_sources(op, dtype, 5003);
    for (int n : {2, 3, 4, 5, 9}) {
      const Bytes expected = reference::reduce(op, dtype, sources, n);
      for (Isa isa : available_isas()) {
        const std::string path = isa_name(isa);
        CAPTURE(path);
        const ReduceFn reduce = reduce_fn_for(isa, op, dtype);
        for (std::size_t misalignment : {0u, 1u, 16u, 40u}) {
          check_call(reduce, dtype, {n, n, 0, 5003, misalignment}, sources, expected);
          check_call(reduce, dtype, {n, n - 1, 3, 5000, misalignment}, sources, expected);
        }
      }
    }
  });
}

enum class Dst { kOwn, kA, kB };

// Runs a ring step of `count` elements at odd addresses.
Bytes run_ring(RingFn ring, const Bytes& a, const Bytes& b, std::size_t count,
               std::size_t dst_bytes, Dst where = Dst::kOwn) {
  Misaligned first(a.data(), a.size(), 1), second(b.data(), b.size(), 3);
  Misaligned own(nullptr, count * dst_bytes, 5);
  Misaligned& dst = where == Dst::kOwn ? own : where == Dst::kA ? first : second;
  ring(dst.data(), first.data(), second.data(), count);
  REQUIRE(first.guards_intact());
  REQUIRE(second.guards_intact());
  REQUIRE(own.guards_intact());
  return Bytes(dst.data(), dst.data() + count * dst_bytes);
}

TEST_CASE("the ring steps of all types without a wider partial are the reduction of two sources") {
  for_each_case([](ReduceOp op, DType dtype) {
    if (partial_dtype(op, dtype) != dtype) return;
    const std::size_t count = 333;
    const std::vector<Bytes> sources = random_sources(op, dtype, count);
    const Bytes expected = reference::reduce(op, dtype, sources, 2);
    for (Isa isa : available_isas()) {
      for (RingStep step : {RingStep::kFirst, RingStep::kMiddle, RingStep::kLast}) {
        const RingFn ring = ring_fn_for(isa, op, dtype, step);
        for (Dst dst : {Dst::kOwn, Dst::kA, Dst::kB}) {
          CHECK(run_ring(ring, sources[0], sources[1], count, dtype_bytes(dtype), dst) == expected);
        }
      }
    }
  });
}

Bytes widened(DType dtype, const Bytes& halves) {
  Bytes floats(halves.size() * 2);
  for (std::size_t i = 0; i < halves.size() / 2; ++i) {
    const long double value = reference::decode(format_of(dtype), bits_at(&halves[2 * i], 2));
    put_bits(&floats[4 * i], reference::encode(format_of(DType::kFloat32), value), 4);
  }
  return floats;
}

TEST_CASE(
    "the ring steps of float16 and bfloat16 carry float32, and end where the reduction in one pass "
    "ends") {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
    for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (std::size_t count : {0u, 1u, 7u, 31u, 32u, 33u, 64u, 130u, 3001u}) {
        INFO(case_name(op, dtype));
        const std::vector<Bytes> sources = random_sources(op, dtype, count);
        std::vector<Bytes> floats;
        for (const Bytes& source : sources) floats.push_back(widened(dtype, source));
        const Bytes first = reference::reduce(op, DType::kFloat32, floats, 2);
        const Bytes middle = reference::reduce(op, DType::kFloat32, floats, 3);
        const Bytes last = reference::reduce(op, dtype, sources, 4);
        for (Isa isa : available_isas()) {
          const auto step = [&](RingStep which) { return ring_fn_for(isa, op, dtype, which); };
          CHECK(run_ring(step(RingStep::kFirst), sources[0], sources[1], count, 4) == first);
          for (Dst dst : {Dst::kOwn, Dst::kA}) {
            CHECK(run_ring(step(RingStep::kMiddle), first, sources[2], count, 4, dst) == middle);
          }
          for (Dst dst : {Dst::kOwn, Dst::kB}) {
            CHECK(run_ring(step(RingStep::kLast), middle, sources[3], count, 2, dst) == last);
          }
        }
      }
    }
  }
}

// x + -0 is x, also where x is -0: a sum that only converts.
Bytes negative_zeros(DType dtype, std::size_t count) {
  Bytes zeros(count * 2);
  for (std::size_t i = 0; i < count; ++i) put_bits(&zeros[2 * i], format_of(dtype).sign(), 2);
  return zeros;
}

TEST_CASE("each of the 65536 float16 and bfloat16 values becomes its float32 and comes back") {
  constexpr std::size_t kAll = 65536;
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Bytes all(2 * kAll), expected(2 * kAll);
    for (std::size_t i = 0; i < kAll; ++i) {
      put_bits(&all[2 * i], i, 2);
      put_bits(&expected[2 * i], format_of(dtype).is_nan(i) ? format_of(dtype).nan() : i, 2);
    }
    const Bytes zeros = negative_zeros(dtype, kAll), floats = widened(dtype, all);
    for (Isa isa : available_isas()) {
      const auto step = [&](RingStep which) {
        return ring_fn_for(isa, ReduceOp::kSum, dtype, which);
      };
      CHECK(run_ring(step(RingStep::kFirst), all, zeros, kAll, 4) == floats);
      CHECK(run_ring(step(RingStep::kLast), floats, zeros, kAll, 2) == expected);
    }
  }
}

// Around every value between two neighbours: the middle, and the floats just below and above it.
std::vector<std::uint64_t> floats_near_midpoints(DType dtype) {
  const reference::Format half = format_of(dtype), single = format_of(DType::kFloat32);
  std::vector<std::uint64_t> floats;
  for (std::uint64_t magnitude = 0; magnitude < half.infinity(); ++magnitude) {
    const long double low = reference::decode(half, magnitude);
    const bool last = magnitude + 1 == half.infinity();  // the next would be a power of two further
    const long double high = last ? 2 * low - reference::decode(half, magnitude - 1)
                                  : reference::decode(half, magnitude + 1);
    const std::uint64_t middle = reference::encode(single, (low + high) / 2);
    for (std::uint64_t bits : {middle - 1, middle, middle + 1}) {
      floats.push_back(bits);
      floats.push_back(bits | single.sign());
    }
  }
  return floats;
}

TEST_CASE(
    "float32 is rounded to float16 and bfloat16 once, to nearest even, halfway cases included") {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::uint64_t> values = floats_near_midpoints(dtype);
    std::mt19937_64 random(kSeed);
    for (int i = 0; i < 300000; ++i) values.push_back(random() & 0xffffffff);
    Bytes floats(4 * values.size()), expected(2 * values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      put_bits(&floats[4 * i], values[i], 4);
      const long double value = reference::decode(format_of(DType::kFloat32), values[i]);
      put_bits(&expected[2 * i], reference::encode(format_of(dtype), value), 2);
    }
    const Bytes zeros = negative_zeros(dtype, values.size());
    for (Isa isa : available_isas()) {
      const std::string path = isa_name(isa);
      CAPTURE(path);
      const RingFn ring = ring_fn_for(isa, ReduceOp::kSum, dtype, RingStep::kLast);
      CHECK(run_ring(ring, floats, zeros, values.size(), 2) == expected);
    }
  }
}

TEST_CASE(
    "max and min of several NaNs are one of them, the same on every path and in every order") {
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
      INFO(case_name(op, dtype));
      const std::size_t count = 4096, bytes = dtype_bytes(dtype);
      const std::vector<Bytes> sources =
          random_sources(ReduceOp::kSum, dtype, count);  // with NaNs of all kinds
      Bytes forward(count * bytes), backward(count * bytes), baseline;
      for (Isa isa : available_isas()) {
        const ReduceFn reduce = reduce_fn_for(isa, op, dtype);
        const void* srcs[] = {sources[0].data(), sources[1].data(), sources[2].data()};
        const void* reversed[] = {srcs[2], srcs[1], srcs[0]};
        reduce(forward.data(), srcs, 3, count);
        reduce(backward.data(), reversed, 3, count);
        if (isa == Isa::kBaseline) baseline = forward;
        CHECK(forward == backward);
        CHECK(forward == baseline);
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t result = bits_at(&forward[i * bytes], bytes);
          bool is_source = false, any_nan = false;
          for (int k = 0; k < 3; ++k) {
            const std::uint64_t source =
                bits_at(&sources[static_cast<std::size_t>(k)][i * bytes], bytes);
            is_source = is_source || source == result;
            any_nan = any_nan || format_of(dtype).is_nan(source);
          }
          REQUIRE(is_source);
          REQUIRE(format_of(dtype).is_nan(result) == any_nan);
        }
      }
    }
  }
}

#if defined(__SSE2__)

// As PyTorch's set_flush_denormal and many audio and inference programs set it.
struct FlushToZero {
  FlushToZero() { _mm_setcsr(saved_ | 0x8040); }
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  unsigned saved_ = _mm_getcsr();
};

TEST_CASE(
    "a thread that flushes subnormals to zero gets the same float16, and the same max and min") {
  for_each_case([](ReduceOp op, DType dtype) {
    if (rounds(op) && dtype != DType::kFloat16) return;
    const std::size_t count = 4000;
    const std::vector<Bytes> sources = random_sources(op, dtype, count);
    const Bytes expected = reference::reduce(op, dtype, sources, 2);
    for (Isa isa : available_isas()) {
      const FlushToZero flush;
      check_call(reduce_fn_for(isa, op, dtype), dtype, {2, 2, 0, count, 0}, sources, expected);
    }
  });
}

#endif

TEST_CASE("what has no meaning has no function, everything else has one") {
  for (ReduceOp op : kOps) {
    for (int code = 0; code < kDTypeCount; ++code) {
      const DType dtype = static_cast<DType>(code);
      const bool meant = dtype != DType::kComplex64 || rounds(op);
      CHECK((reduce_fn(op, dtype) != nullptr) == meant);
      for (RingStep step : {RingStep::kFirst, RingStep::kMiddle, RingStep::kLast}) {
        CHECK((ring_fn(op, dtype, step) != nullptr) == meant);
      }
      CHECK(partial_dtype(op, dtype) == (is_half(dtype) && rounds(op) ? DType::kFloat32 : dtype));
      const bool best = reduce_fn(op, dtype) == reduce_fn_for(isa_best(), op, dtype);
      CHECK(best);
    }
  }
}

}  // namespace
}  // namespace standfast
