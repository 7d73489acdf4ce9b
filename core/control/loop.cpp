#include "core/control/loop.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "core/base/error.h"
#include "core/base/thread.h"
#include "core/control/sigterm.h"

namespace standfast {
namespace {

// What a poller's token stands for: a link's rank, a process's rank, or the inbox.
constexpr int kInbox = -1;
constexpr int kProcessBase = 1 << 24;
constexpr int kExitStatus = 75;  // exits.RETRY: EX_TEMPFAIL
// Frames of ours that a peer does not take are given up after this long at the end.
constexpr Nanos kFlushMax = 250 * kMillisecond;

bool is_gone(int pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

Watch::Watch(WatchConfig config, AbortWord& abort)
    : config_(std::move(config)), abort_(abort), machine_(config_.shape) {
  const auto size = static_cast<std::size_t>(config_.shape.size);
  left_ = std::make_unique<std::atomic<bool>[]>(size);
  collectives_ = std::make_unique<std::atomic<std::uint32_t>[]>(size);
  for (std::size_t i = 0; i < size; ++i) collectives_[i].store(kEveryCollective);
  link_fds_ = std::make_unique<std::atomic<int>[]>(size);
  for (std::size_t i = 0; i < size; ++i) link_fds_[i].store(-1);
  poller_.add(inbox_bell_.fd(), kInbox);
  for (auto& [rank, fd] : config_.links) {
    prepare_socket(fd.get());
    poller_.add(fd.get(), rank);
    link_fds_[static_cast<std::size_t>(rank)].store(fd.get());
    links_.emplace(rank, Link{rank, std::move(fd), {}, {}, false});
  }
  for (const auto& [rank, pid] : config_.processes) {
    if (!poller_.add_process(pid, kProcessBase + rank) && is_gone(pid))
      gone_before_.push_back(rank);
  }
  if (config_.serve_sigterm) config_.serve_sigterm = sigterm::enlist(inbox_bell_.ring_fd());
  try {
    thread_ = deaf_thread([this] { run(); });
  } catch (...) {
    if (config_.serve_sigterm) sigterm::resign(inbox_bell_.ring_fd());
    throw;
  }
}

Watch::~Watch() {
  if (thread_.joinable()) end(Goodbye::kNone, 0);
}

void Watch::report(VerdictKind kind, int rank, std::string cause, bool suspicion) {
  Verdict verdict;
  verdict.kind = kind;
  verdict.rank = rank;
  verdict.cause = std::move(cause);
  report(std::move(verdict), suspicion);
}

void Watch::report(Verdict verdict, bool suspicion) {
  verdict.reporter = config_.shape.rank;
  Frame frame;
  frame.type = FrameType::kReport;
  frame.generation = config_.shape.generation;
  frame.suspicion = suspicion;
  frame.verdict = std::move(verdict);
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(frame));
  }
  inbox_bell_.ring();
}

bool Watch::has_left(int rank) const {
  return left_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed);
}

int Watch::leaver_before(std::uint32_t collective) const {
  if (collective <= last_collective_.load(std::memory_order_acquire)) [[likely]]
    return -1;
  for (int rank = 0; rank < config_.shape.size; ++rank) {
    const auto& last = collectives_[static_cast<std::size_t>(rank)];
    if (collective > last.load(std::memory_order_relaxed)) return rank;
  }
  return -1;
}

void Watch::end(Goodbye goodbye, Nanos linger, std::uint32_t collectives) {
  {
    const std::lock_guard lock(mutex_);
    ending_ = std::make_unique<Ending>(Ending{goodbye, linger, collectives});
  }
  inbox_bell_.ring();
  thread_.join();
  while (!links_.empty()) drop(links_.begin());  // nobody listens any more: the peers shall see it
}

void Watch::drop(std::map<int, Link>::iterator link) {
  link_fds_[static_cast<std::size_t>(link->first)].store(-1, std::memory_order_relaxed);
  links_.erase(link);
}

void Watch::abandon() {
  sigterm::forget();
  for (int rank = 0; rank < config_.shape.size; ++rank) {
    const int fd = link_fds_[static_cast<std::size_t>(rank)].load(std::memory_order_relaxed);
    if (fd >= 0) ::close(fd);
  }
}

void Watch::run() {
  constexpr int kReadyMax = 64;
  Ready ready[kReadyMax];
  for (const int rank : gone_before_) process_gone(rank);
  while (!has_ended()) {
    const Nanos now = now_ns();
    const int count = poller_.wait(ready, kReadyMax, next_wake(now) - now);
    for (int i = 0; i < count; ++i) on_ready(ready[i]);
    step({});
    exit_if_due(now_ns());
  }
  if (config_.serve_sigterm) sigterm::resign(inbox_bell_.ring_fd());
}

Nanos Watch::next_wake(Nanos now) const {
  Nanos wake = std::min(machine_.wakes_at(), end_at_);
  const bool timer_runs = config_.exit_on_fault && !taken_.load(std::memory_order_relaxed);
  if (timer_runs && !ending_begun_) wake = std::min(wake, exit_at_);
  return wake == kNever ? deadline_after(now, 60 * kSecond) : wake;
}

void Watch::on_ready(const Ready& ready) {
  if (ready.token == kInbox) {
    inbox_bell_.silence();
    serve_inbox();
  } else if (ready.token >= kProcessBase) {
    process_gone(ready.token - kProcessBase);
  } else if (Link* link = link_to(ready.token)) {
    if (ready.writable) flush(*link);
    if (ready.readable) read_link(*link);
  }
}

void Watch::serve_inbox() {
  std::vector<Frame> frames;
  bool end_asked = false;
  {
    const std::lock_guard lock(mutex_);
    frames.swap(inbox_);
    end_asked = ending_ != nullptr;
  }
  for (Frame& frame : frames) step({Event::Kind::kLocal, config_.shape.rank, std::move(frame), {}});
  if (config_.serve_sigterm && sigterm::pending()) serve_sigterm();
  if (end_asked && !ending_begun_) begin_end();
}

Watch::Link* Watch::link_to(int rank) {
  const auto found = links_.find(rank);
  return found == links_.end() ? nullptr : &found->second;
}

void Watch::read_link(Link& link) {
  const int rank = link.rank;
  std::byte buffer[4096];
  for (;;) {
    const Transfer transfer = receive_some(link.fd.get(), buffer, sizeof buffer);
    if (transfer.kind == Transfer::Kind::kWouldBlock) return;
    if (transfer.kind == Transfer::Kind::kEnd) return link_ended(rank, "closed without goodbye");
    if (transfer.kind == Transfer::Kind::kError) {
      return link_ended(rank, "broke: recv: " + errno_text(transfer.code));
    }
    link.reader.append(buffer, transfer.bytes);
    while (auto frame = link.reader.next()) {
      step({Event::Kind::kFrame, rank, std::move(*frame), {}});
      if (link_to(rank) == nullptr) return;
    }
    if (link.reader.is_garbage()) return link_ended(rank, "carried bytes that are none of ours");
  }
}

void Watch::link_ended(int rank, std::string how) {
  const auto found = links_.find(rank);
  if (found == links_.end()) return;
  poller_.remove(found->second.fd.get());
  drop(found);
  if (!has_gone_home()) step({Event::Kind::kLinkEnded, rank, {}, std::move(how)});
}

// Ends are no news to who has left: rank 0 closes the link in answer to the goodbye. Rank 0 itself
// stays coordinator.
bool Watch::has_gone_home() const { return ending_begun_ && config_.shape.rank != 0; }

// What the peer said before it ended still counts: its link is read empty first.
void Watch::process_gone(int rank) {
  for (const auto& [peer, pid] : config_.processes) {
    if (peer != rank) continue;
    poller_.remove_process(pid);
    if (Link* link = link_to(rank)) read_link(*link);
    if (has_gone_home()) return;
    step({Event::Kind::kProcessGone, rank, {}, "its process " + std::to_string(pid) + " ended"});
  }
}

void Watch::step(const Event& event) {
  Actions actions = machine_.step(event, now_ns());
  if (event.kind == Event::Kind::kFrame) note_left();
  // Sent first, for whoever gets the verdict here may end the process at once: the others would
  // take that for the cause.
  for (const auto& [to, frame] : actions.sends) send(to, frame);
  if (actions.verdict) raise(std::move(*actions.verdict));
  // Who said goodbye to rank 0 waits for the link's end, to know that it was heard.
  const bool said_goodbye =
      event.kind == Event::Kind::kFrame && event.frame.type == FrameType::kGoodbye;
  if (said_goodbye && config_.shape.rank == 0) link_ended(event.rank, "closed after goodbye");
}

void Watch::note_left() {
  std::uint32_t last = kEveryCollective;
  for (int rank = 0; rank < config_.shape.size; ++rank) {
    if (!machine_.has_left(rank)) continue;
    const auto i = static_cast<std::size_t>(rank);
    left_[i].store(true, std::memory_order_relaxed);
    collectives_[i].store(machine_.last_collective(rank), std::memory_order_relaxed);
    last = std::min(last, machine_.last_collective(rank));
  }
  if (last >= last_collective_.load(std::memory_order_relaxed)) return;
  last_collective_.store(last, std::memory_order_release);
  for (const Bell* bell : config_.bells) bell->ring();
}

void Watch::raise(Verdict verdict) {
  verdict.detected_ns = now_ns();
  if (!abort_.raise(std::move(verdict))) return;
  for (const Bell* bell : config_.bells) bell->ring();
  exit_at_ = deadline_after(now_ns(), config_.exit_grace);
}

void Watch::send(int to, const Frame& frame) {
  Link* link = link_to(to);
  if (link == nullptr) return;
  const std::vector<std::byte> bytes = encode(frame);
  link->out.insert(link->out.end(), bytes.begin(), bytes.end());
  flush(*link);
}

// A peer that does not read keeps us from writing, never from watching.
void Watch::flush(Link& link) {
  while (!link.out.empty()) {
    const Transfer transfer = send_some(link.fd.get(), link.out.data(), link.out.size());
    if (transfer.kind != Transfer::Kind::kMoved) {
      // An error shows when the link is read; what can't be sent is dropped then.
      if (transfer.kind == Transfer::Kind::kError) link.out.clear();
      break;
    }
    link.out.erase(link.out.begin(),
                   link.out.begin() + static_cast<std::ptrdiff_t>(transfer.bytes));
  }
  const bool writing = !link.out.empty();
  if (writing == link.writing) return;
  link.writing = writing;
  poller_.want_write(link.fd.get(), link.rank, writing);
}

void Watch::begin_end() {
  ending_begun_ = true;
  const bool failed = abort_.verdict() != nullptr;
  const Nanos now = now_ns();
  if (!failed && ending_->goodbye != Goodbye::kNone) {
    Frame frame;
    frame.type = FrameType::kGoodbye;
    frame.generation = config_.shape.generation;
    const bool interrupted = ending_->goodbye == Goodbye::kInterrupted;
    frame.verdict.kind = interrupted ? VerdictKind::kLeft : VerdictKind::kNone;
    frame.verdict.rank = config_.shape.rank;
    frame.verdict.reporter = config_.shape.rank;
    frame.verdict.cause = interrupted ? "interrupted" : "closed its group";
    frame.collectives = ending_->collectives;
    for (auto& [rank, link] : links_) {
      const std::vector<std::byte> bytes = encode(frame);
      link.out.insert(link.out.end(), bytes.begin(), bytes.end());
    }
    // Rank 0 goes on as coordinator for those who are still at work; the others only wait until
    // rank 0 has heard.
    const Nanos patience =
        config_.shape.rank == 0 ? ending_->linger : std::min(ending_->linger, kFlushMax);
    end_at_ = deadline_after(now, interrupted ? kFlushMax : patience);
    // Rank 0 is the judge of whether it left itself, too.
    const bool coordinates = config_.shape.rank == 0 && !interrupted;
    if (coordinates) step({Event::Kind::kLeaving, 0, std::move(frame), {}});
  } else {
    end_at_ = deadline_after(now, kFlushMax);
  }
  for (auto& [rank, link] : links_) flush(link);
}

bool Watch::is_flushed() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return entry.second.out.empty(); });
}

bool Watch::has_ended() const {
  if (!ending_begun_) return false;
  if (links_.empty() || now_ns() >= end_at_) return true;
  const bool awaits_ends = abort_.verdict() == nullptr && ending_->goodbye == Goodbye::kOrderly;
  return !awaits_ends && is_flushed();
}

void Watch::serve_sigterm() {
  config_.serve_sigterm = false;
  Verdict verdict;
  verdict.kind = VerdictKind::kLeft;
  verdict.rank = config_.shape.rank;
  verdict.reporter = config_.shape.rank;
  verdict.cause = "interrupted by SIGTERM";
  Frame frame;
  frame.generation = config_.shape.generation;
  frame.verdict = verdict;
  frame.type = FrameType::kGoodbye;
  for (auto& [rank, link] : links_) send(rank, frame);
  sigterm::served(inbox_bell_.ring_fd());
}

// The program did not come back for its error: stuck in a kernel, a GPU wait, foreign code. End it
// here.
void Watch::exit_if_due(Nanos now) const {
  if (!config_.exit_on_fault || now < exit_at_ || ending_begun_) return;
  if (taken_.load(std::memory_order_relaxed)) return;
  const Verdict& verdict = *abort_.verdict();
  char text[512];
  const int length = std::snprintf(
      text, sizeof text,
      "standfast: rank %d ends with status %d: rank %d %s (%s), and the program did not take the "
      "error within %.1f s\n",
      config_.shape.rank, kExitStatus, verdict.rank, verdict_name(verdict.kind),
      verdict.cause.c_str(), to_seconds(config_.exit_grace));
  write_without_blocking(STDERR_FILENO, text,
                         static_cast<std::size_t>(std::clamp<int>(length, 0, sizeof text - 1)));
  _exit(kExitStatus);
}

}  // namespace standfast
