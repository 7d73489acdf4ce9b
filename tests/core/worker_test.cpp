// The threads that run submitted operations, and how one waits for them.
#include "core/wait/worker.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/core/support.h"

namespace standfast {
namespace {

using test::eventually;

std::atomic<bool> wants_interrupt{false};
bool asks_for_interrupt() { return wants_interrupt; }

void submit(Worker& worker, Worker::Job job) {
  REQUIRE(worker.has_room());
  worker.submit(std::move(job));
}

}  // namespace

// Jobs run in the order in which they came, one after another, in one thread.
TEST_CASE("worker: order") {
  Worker worker;
  std::vector<int> ran;  // no lock: only the worker's thread touches it before stop()
  std::vector<std::thread::id> threads;
  for (int job = 0; job < 1000; ++job) {
    submit(worker, [&, job] {
      ran.push_back(job);
      threads.push_back(std::this_thread::get_id());
    });
  }
  worker.stop();
  REQUIRE(ran.size() == 1000);
  for (int job = 0; job < 1000; ++job) CHECK(ran[static_cast<std::size_t>(job)] == job);
  for (const auto& thread : threads) CHECK(thread == threads.front());
  CHECK(threads.front() != std::this_thread::get_id());
}

// Stopping runs what is queued, then joins; afterwards nothing is taken on, and stopping again is
// nothing.
TEST_CASE("worker: stop") {
  Worker worker;
  std::atomic<bool> may_go{false};
  std::atomic<int> ran{0};
  submit(worker, [&] {
    (void)eventually([&] { return may_go.load(); });
    ++ran;
  });
  for (int job = 0; job < 10; ++job) submit(worker, [&] { ++ran; });
  CHECK(worker.has_room());
  CHECK(ran == 0);
  may_go = true;
  worker.stop();
  CHECK(ran == 11);
  CHECK_FALSE(worker.has_room());
  worker.stop();
}

// A worker that never got a job has no thread to stop.
TEST_CASE("worker: nothing to do") {
  Worker worker;
  CHECK(worker.has_room());
  worker.stop();
}

// The queue is bounded: it says when it is full, and has room again afterwards.
TEST_CASE("worker: a full queue") {
  Worker worker;
  std::atomic<bool> may_go{false};
  std::atomic<std::size_t> ran{0};
  submit(worker, [&] { (void)eventually([&] { return may_go.load(); }); });
  std::size_t queued = 0;
  while (worker.has_room() && queued <= Worker::kJobsMax) {
    worker.submit([&] { ++ran; });
    ++queued;
  }
  CHECK(queued <= Worker::kJobsMax);
  CHECK(queued + 1 >= Worker::kJobsMax);
  CHECK_FALSE(worker.has_room());
  may_go = true;
  CHECK(eventually([&] { return worker.has_room(); }));
  worker.stop();
  CHECK(ran == queued);
}

// What a job holds is let go once it has run, not when the next one comes.
TEST_CASE("worker: jobs are let go") {
  Worker worker;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  submit(worker, [held = std::move(held)] {});
  CHECK(eventually([&] { return seen.expired(); }));
}

// A completion is waited for until it is set, the time is up or a signal handler asks to end.
TEST_CASE("completion") {
  Completion completion;
  bool was_interrupted = false;
  CHECK_FALSE(completion.is_set());
  const Nanos start = now_ns();
  CHECK_FALSE(completion.wait(60 * kMillisecond, nullptr, &was_interrupted));
  CHECK(now_ns() - start >= 60 * kMillisecond);
  CHECK_FALSE(completion.wait(0, nullptr, &was_interrupted));
  CHECK_FALSE(was_interrupted);

  wants_interrupt = true;
  CHECK_FALSE(completion.wait(test::kPatience, asks_for_interrupt, &was_interrupted));
  CHECK(was_interrupted);

  wants_interrupt = false;
  was_interrupted = false;
  int result = 0;  // handed over by the completion alone
  test::Threads threads;
  threads.start([&] {
    result = 5;
    completion.set();
  });
  CHECK(completion.wait(kNever, asks_for_interrupt, &was_interrupted));
  CHECK(result == 5);
  CHECK_FALSE(was_interrupted);
  threads.join();
  CHECK(completion.is_set());
  CHECK(completion.wait(0, nullptr, &was_interrupted));
}

}  // namespace standfast
