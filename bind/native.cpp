// A group's core as a capsule: the table of functions, and what they do. All but as_python run in
// threads that Python does not know.
#include "bind/native.h"

#include <standfast/native.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "core/base/dtype.h"
#include "core/group.h"

namespace nb = nanobind;

// One share of a group.
struct standfast_group {
  std::shared_ptr<standfast::Group> share;
};

struct standfast_failure {
  standfast::Failure failure;
};

namespace standfast::bind {
namespace {

static_assert(STANDFAST_DTYPES == kDTypeCount);
static_assert(STANDFAST_BFLOAT16 == static_cast<int>(DType::kBFloat16));
static_assert(STANDFAST_COMPLEX64 == static_cast<int>(DType::kComplex64));
static_assert(STANDFAST_MIN == static_cast<int>(ReduceOp::kMin));
static_assert(STANDFAST_PROD == static_cast<int>(ReduceOp::kProd));

standfast_group* retain(standfast_group* group) { return new standfast_group{group->share}; }

void release(standfast_group* group) { delete group; }

RequestKind kind_of(std::int32_t kind) {
  switch (kind) {
    case STANDFAST_ALL_GATHER: return RequestKind::kAllGather;
    case STANDFAST_REDUCE_SCATTER: return RequestKind::kReduceScatter;
    case STANDFAST_SEND: return RequestKind::kSend;
    case STANDFAST_RECV: return RequestKind::kReceive;
    default: return RequestKind::kAllReduce;
  }
}

bool is_known(const standfast_operation& operation) {
  const auto below = [](std::int32_t code, int end) { return code >= 0 && code < end; };
  return below(operation.kind, STANDFAST_KINDS) && below(operation.dtype, STANDFAST_DTYPES) &&
         below(operation.reduction, STANDFAST_REDUCTIONS);
}

standfast_failure* run(standfast_group* group, const standfast_operation* operation,
                       bool (*interrupted)(void)) {
  if (!is_known(*operation)) {
    auto failed = std::make_unique<standfast_failure>();
    failed->failure.verdict.kind = VerdictKind::kInternal;
    failed->failure.verdict.cause = "an operation that this version does not know";
    return failed.release();
  }
  Request request;
  request.kind = kind_of(operation->kind);
  request.src = static_cast<const std::byte*>(operation->src);
  request.dst = static_cast<std::byte*>(operation->dst);
  request.count = operation->count;
  request.dtype = static_cast<DType>(operation->dtype);
  request.op = static_cast<ReduceOp>(operation->reduction);
  request.peer = operation->peer;
  Result result = group->share->run(request, interrupted);
  if (!result.failure) return nullptr;
  return new standfast_failure{std::move(*result.failure)};
}

void describe(const standfast_failure* failed, char* text, std::size_t bytes) {
  if (bytes == 0) return;
  const Failure& failure = failed->failure;
  std::string line = failure.interrupted ? "interrupted" : verdict_name(failure.verdict.kind);
  if (failure.verdict.rank >= 0) line += ": rank " + std::to_string(failure.verdict.rank);
  if (!failure.verdict.cause.empty()) line += ": " + failure.verdict.cause;
  const std::size_t length = std::min(line.size(), bytes - 1);
  std::memcpy(text, line.data(), length);
  text[length] = '\0';
}

void* as_python(const standfast_failure* failed) {
  return nb::cast(failed->failure).release().ptr();
}

void forget(standfast_failure* failed) { delete failed; }

struct Held {
  standfast_native table{};
  standfast_group own;
};

}  // namespace

nb::capsule native_of(const GroupHandle& handle, int rank, int size) {
  auto held = std::make_unique<Held>();
  held->own.share = handle.share();
  held->table = {.version = STANDFAST_NATIVE_VERSION,
                 .bytes = sizeof(standfast_native),
                 .rank = rank,
                 .size = size,
                 .group = &held->own,
                 .retain = retain,
                 .release = release,
                 .run = run,
                 .describe = describe,
                 .as_python = as_python,
                 .forget = forget};
  static_assert(offsetof(Held, table) == 0);
  return nb::capsule(held.release(), STANDFAST_NATIVE_CAPSULE, [](void* p) noexcept {
    const std::unique_ptr<Held> ended(static_cast<Held*>(p));
    const nb::gil_scoped_release nogil;
    ended->own.share.reset();
  });
}

}  // namespace standfast::bind
