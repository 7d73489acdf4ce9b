#include "core/control/loop.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>

#include "core/base/error.h"
#include "core/base/fault_hook.h"
#include "core/base/thread.h"
#include "core/control/sigterm.h"
#include "core/control/system.h"

namespace standfast {
namespace {

// What a poller's token stands for: a link's rank, a process's rank, or the inbox.
constexpr int kInbox = -1;
constexpr int kProcessBase = 1 << 24;
constexpr int kExitStatus = 75;  // exits.RETRY: EX_TEMPFAIL
// Frames of ours that a peer does not take are given up after this long at the end.
constexpr Nanos kFlushMax = 250 * kMillisecond;
// What the program and its abort hooks get beyond the grace.
constexpr Nanos kHookGrace = 2 * kSecond;
// A control connection whose other end does not acknowledge is given up after this long at the
// least. The machine judges silence itself, and sooner.
constexpr Nanos kUnansweredMin = 20 * kSecond;

Nanos unanswered(const WatchLimits& limits) {
  return limits.silence == kNever ? kNever : std::max(limits.silence, kUnansweredMin);
}

// Between two attempts to send to a host that does not answer. The system gives a connection up
// after 15 of them: later than the silence limit.
Nanos retry_pause(const WatchLimits& limits) {
  constexpr int kPerSilence = 8;
  if (limits.silence == kNever) return kNever;
  return std::clamp(limits.silence / kPerSilence, kSecond, 100 * kSecond);
}

ConnectionLimits limits_of(const WatchLimits& limits, Nanos unanswered) {
  return {unanswered, retry_pause(limits), limits.silence == kNever ? 0 : limits.silence};
}

// Errors by which the network says that it can't reach the host, not that somebody hung up.
bool is_expiry(int code) {
  return code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == EHOSTDOWN;
}

bool is_gone(int pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

Watch::Watch(WatchConfig config, AbortWord& abort)
    : config_(std::move(config)),
      abort_(abort),
      machine_(config_.shape, config_.limits),
      log_(config_.shape.rank, config_.logs),
      sights_(static_cast<std::size_t>(config_.shape.size)),
      received_(config_.data_links.size()),
      missed_after_(config_.limits.silence == kNever ? kNever : config_.limits.silence / 2) {
  const auto size = static_cast<std::size_t>(config_.shape.size);
  left_ = std::make_unique<std::atomic<bool>[]>(size);
  collectives_ = std::make_unique<std::atomic<std::uint32_t>[]>(size);
  for (std::size_t i = 0; i < size; ++i) collectives_[i].store(kEveryCollective);
  link_fds_ = std::make_unique<std::atomic<int>[]>(size);
  for (std::size_t i = 0; i < size; ++i) link_fds_[i].store(-1);
  poller_.add(inbox_bell_.fd(), kInbox);
  for (auto& [rank, fd] : config_.links) {
    prepare_socket(fd.get());
    limit_connection(fd.get(), limits_of(config_.limits, unanswered(config_.limits)));
    poller_.add(fd.get(), rank);
    link_fds_[static_cast<std::size_t>(rank)].store(fd.get());
    const std::uint64_t identity = identity_of(fd.get());
    links_.emplace(rank, Link{rank, std::move(fd), {}, {}, false, identity});
  }
  for (const DataLink& link : config_.data_links) {
    if (link.fd >= 0) limit_connection(link.fd, limits_of(config_.limits, kNever));
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

void Watch::beacon_died(int rank) {
  {
    const std::lock_guard lock(mutex_);
    beacons_.push_back(rank);
  }
  inbox_bell_.ring();
}

std::vector<Hint> Watch::hints() const {
  const std::lock_guard lock(news_mutex_);
  return hints_;
}

std::uint64_t Watch::await_news(std::uint64_t seen, Nanos span) const {
  std::unique_lock lock(news_mutex_);
  news_bell_.wait_for(lock, std::chrono::nanoseconds(std::min(span, 3600 * kSecond)),
                      [&] { return news_ != seen; });
  return news_;
}

void Watch::tell_news() {
  {
    const std::lock_guard lock(news_mutex_);
    ++news_;
  }
  news_bell_.notify_all();
}

int Watch::find_leaver_before(std::uint32_t collective) const {
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

// The peer shall see the end now: closing alone would not tell it while a sentinel of ours still
// holds the link.
void Watch::drop(std::map<int, Link>::iterator link) {
  ::shutdown(link->second.fd.get(), SHUT_RDWR);
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

// Whatever happens in here reaches the program as a verdict.
void Watch::run() {
  try {
    serve();
  } catch (const std::exception& error) {
    fail(error.what());
    await_exit();
  } catch (...) {
    fail("unknown error");
    await_exit();
  }
  if (config_.serve_sigterm) sigterm::resign(inbox_bell_.ring_fd());
  tell_news();
}

void Watch::serve() {
  constexpr int kReadyMax = 64;
  Ready ready[kReadyMax];
  tick();
  for (const int rank : gone_before_) process_gone(rank, "had ended before");
  while (!has_ended()) {
    throw_if_asked(ThreadKind::kWatch);
    const Nanos now = now_ns();
    const Nanos span = behind_.load() > 0 ? 0 : next_wake(now) - now;
    const int count = poller_.wait(ready, kReadyMax, span);
    for (int i = 0; i < count; ++i) on_ready(ready[i]);
    tick();
    exit_if_due(now_ns());
    end_turn();
  }
}

void Watch::end_turn() {
  turned_at_.store(coarse_now_ns(), std::memory_order_relaxed);
  if (behind_.load() == 0) return;
  {
    const std::lock_guard lock(news_mutex_);
    ++turns_;
  }
  news_bell_.notify_all();
}

// The turn that is under way may have looked before; the next one has not.
void Watch::catch_up(Nanos limit) {
  ++behind_;
  inbox_bell_.ring();
  {
    std::unique_lock lock(news_mutex_);
    const std::uint64_t enough = turns_ + 2;
    news_bell_.wait_for(lock, std::chrono::nanoseconds(limit), [&] { return turns_ >= enough; });
  }
  --behind_;
}

// The watch itself can't go on. Nobody may wait for what it will never say.
void Watch::fail(const char* why) {
  Verdict verdict;
  verdict.kind = VerdictKind::kInternal;
  verdict.rank = verdict.reporter = config_.shape.rank;
  verdict.cause = std::string("its watch failed: ") + why;
  try {
    tell_failure(verdict);
  } catch (...) {  // they see the end of the links, or the silence
  }
  raise(std::move(verdict));
}

void Watch::tell_failure(const Verdict& verdict) {
  Frame frame;
  frame.type = config_.shape.rank == 0 ? FrameType::kVerdict : FrameType::kReport;
  frame.generation = config_.shape.generation;
  frame.verdict = verdict;
  std::vector<int> ranks;
  for (const auto& [rank, link] : links_) ranks.push_back(rank);
  for (const int rank : ranks) send(rank, frame);
}

// All that is left of a watch that failed: the bounded end.
void Watch::await_exit() {
  constexpr Nanos kNap = 20 * kMillisecond;
  const auto is_ending = [this] {
    const std::lock_guard lock(mutex_);
    return ending_ != nullptr;
  };
  while (config_.exit_on_fault && !taken_.load(std::memory_order_relaxed) && !is_ending()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kNap));
    exit_if_due(now_ns());
  }
}

void Watch::tick() { step(machine_.is_review_due(now_ns()) ? sample() : Event{}); }

// What a review of the machine looks at.
Event Watch::sample() {
  find_closed_descriptors();
  const Nanos now = now_ns();
  for (auto& [rank, link] : links_) {
    const bool was_asked = link.asked;
    link.asked = machine_.is_unheard(rank, now);
    if (!link.asked) continue;
    const std::uint64_t acknowledged = acknowledged_bytes(link.fd.get());
    const bool answers = (was_asked && acknowledged != link.acknowledged) ||
                         (link.out.empty() && is_all_acknowledged(link.fd.get()));
    link.acknowledged = acknowledged;
    if (answers) sights_[static_cast<std::size_t>(rank)].acked_at = now;
  }
  for (std::size_t i = 0; i < received_.size(); ++i) {
    const DataLink& link = config_.data_links[i];
    const std::uint64_t received = link.received->load(std::memory_order_relaxed);
    Sight& sight = sights_[static_cast<std::size_t>(link.rank)];
    if (received != received_[i]) sight.data_at = now;
    const bool asked = link.fd >= 0 && machine_.is_unheard(link.rank, now);
    const Nanos age = asked ? acknowledgement_age(link.fd) : kNever;
    if (age != kNever) sight.wire_at = now - std::min(age, now);
    received_[i] = received;
  }
  for (const auto& [rank, pid] : config_.processes) {
    const bool asked = machine_.is_unheard(rank, now);
    sights_[static_cast<std::size_t>(rank)].process = asked ? process_state(pid) : '\0';
  }
  find_dead_data_links();
  Event event;
  if (config_.board != nullptr) event.frame.status = config_.board->read(now);
  event.sights = &sights_;
  return event;
}

// Somebody may have closed what is ours; the number may even be another file's by now. Of very many
// links some are looked at each time.
void Watch::find_closed_descriptors() {
  constexpr std::size_t kLooksMax = 64;
  std::vector<int> closed;
  auto at = links_.lower_bound(next_to_look_at_);
  for (std::size_t i = 0; i < std::min(links_.size(), kLooksMax); ++i, ++at) {
    if (at == links_.end()) at = links_.begin();
    const auto& [rank, link] = *at;
    if (identity_of(link.fd.get()) != link.identity) closed.push_back(rank);
    next_to_look_at_ = rank + 1;
  }
  for (const int rank : closed) {
    links_.at(rank).fd.release();
    link_ended(rank, "was closed under the watch by this process");
  }
}

void Watch::find_dead_data_links() {
  if (config_.limits.silence == kNever || ending_begun_) return;
  for (DataLink& link : config_.data_links) {
    if (link.fd < 0) continue;
    const Nanos span = unacknowledged_for(link.fd);
    // A network that was there again within the limit gets one more attempt.
    if (span < config_.limits.silence + retry_pause(config_.limits)) continue;
    link.fd = -1;
    report(VerdictKind::kLinkLost, link.rank,
           "data connection between rank " + std::to_string(config_.shape.rank) + " and rank " +
               std::to_string(link.rank) + " (" + link.text +
               "): nothing sent was acknowledged for " + std::to_string(span / kSecond) + " s",
           true);
  }
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
    process_gone(ready.token - kProcessBase, "ended");
  } else if (Link* link = link_to(ready.token)) {
    if (ready.writable) flush(*link);
    if (ready.readable) read_link(*link, Until::kNow);
  }
}

void Watch::serve_inbox() {
  std::vector<Frame> frames;
  std::vector<int> beacons;
  bool end_asked = false;
  {
    const std::lock_guard lock(mutex_);
    frames.swap(inbox_);
    beacons.swap(beacons_);
    end_asked = ending_ != nullptr;
  }
  for (const int rank : beacons) process_gone(rank, "is ending: its beacon was passed on");
  for (Frame& frame : frames) step({Event::Kind::kLocal, config_.shape.rank, std::move(frame), {}});
  if (config_.serve_sigterm && sigterm::pending()) serve_sigterm();
  if (end_asked && !ending_begun_) begin_end();
}

Watch::Link* Watch::link_to(int rank) {
  const auto found = links_.find(rank);
  return found == links_.end() ? nullptr : &found->second;
}

std::optional<Departure> Watch::departure(int rank) const {
  const std::lock_guard lock(departures_mutex_);
  for (const Departure& departure : departures_) {
    if (rank < 0 || departure.rank == rank) return departure;
  }
  return std::nullopt;
}

bool Watch::is_silent(int rank) const {
  return std::find(config_.silent.begin(), config_.silent.end(), rank) != config_.silent.end();
}

bool Watch::has_loud_links() const {
  return std::any_of(links_.begin(), links_.end(),
                     [this](const auto& entry) { return !is_silent(entry.first); });
}

// Whatever comes is none of ours, and nobody else reads it: it makes room for the end behind it.
void Watch::read_silent_link(Link& link) {
  std::byte buffer[4096];
  for (;;) {
    const Transfer transfer = receive_some(link.fd.get(), buffer, sizeof buffer);
    switch (transfer.kind) {
      case Transfer::Kind::kMoved: break;
      case Transfer::Kind::kWouldBlock: return;
      case Transfer::Kind::kEnd: return note_departure(link.rank, "closed", 0);
      case Transfer::Kind::kError:
        return note_departure(link.rank, "broke: recv: " + errno_text(transfer.code),
                              transfer.code);
    }
  }
}

void Watch::note_departure(int rank, std::string how, int code) {
  if (!let_go(rank)) return;
  {
    const std::lock_guard lock(departures_mutex_);
    departures_.push_back({rank, is_expiry(code), std::move(how)});
  }
  departed_.store(true, std::memory_order_release);
  for (const Bell* bell : config_.bells) bell->ring();
}

// Until::kNow: what comes behind a short read makes the link ready again.
void Watch::read_link(Link& link, Until until) {
  if (is_silent(link.rank)) return read_silent_link(link);
  const int rank = link.rank;
  std::byte buffer[4096];
  for (;;) {
    const Transfer transfer = receive_some(link.fd.get(), buffer, sizeof buffer);
    if (transfer.kind == Transfer::Kind::kWouldBlock) return;
    if (transfer.kind == Transfer::Kind::kEnd) return link_ended(rank, "closed without goodbye");
    if (transfer.kind == Transfer::Kind::kError) {
      return link_broke(rank, transfer.code);
    }
    link.reader.append(buffer, transfer.bytes);
    while (auto frame = link.reader.next()) {
      Event event;
      event.kind = Event::Kind::kFrame;
      event.rank = rank;
      event.drained = drain_accused(*frame);
      event.frame = std::move(*frame);
      step(event);
      if (link_to(rank) == nullptr) return;
    }
    if (link.reader.is_garbage()) return link_ended(rank, "carried bytes that are none of ours");
    if (until == Until::kNow && transfer.bytes < sizeof buffer) return;
  }
}

// A neighbour saw a process of this host die. What that had said lies in its link by now.
bool Watch::drain_accused(const Frame& frame) {
  const int rank = frame.verdict.rank;
  const bool says_died = frame.type == FrameType::kReport && frame.suspicion &&
                         frame.verdict.kind == VerdictKind::kDied;
  const bool is_here = std::any_of(config_.processes.begin(), config_.processes.end(),
                                   [&](const auto& process) { return process.first == rank; });
  if (!says_died || !is_here) return false;
  if (Link* link = link_to(rank)) read_link(*link);
  return true;
}

void Watch::link_ended(int rank, std::string how) {
  if (let_go(rank)) step({Event::Kind::kLinkEnded, rank, {}, std::move(how)});
}

void Watch::link_broke(int rank, int code) {
  const std::string how = "broke: recv: " + errno_text(code);
  if (!is_expiry(code)) return link_ended(rank, how);
  if (let_go(rank)) step({Event::Kind::kLinkExpired, rank, {}, how});
}

// True if its end is news.
bool Watch::let_go(int rank) {
  const auto found = links_.find(rank);
  if (found == links_.end()) return false;
  poller_.remove(found->second.fd.get());
  drop(found);
  return !has_gone_home();
}

// Ends are no news to who has left: rank 0 closes the link in answer to the goodbye. Rank 0 itself
// stays coordinator.
bool Watch::has_gone_home() const { return ending_begun_ && config_.shape.rank != 0; }

// What the peer said before it ended still counts: its link is read empty first.
void Watch::process_gone(int rank, const std::string& how) {
  for (const auto& [peer, pid] : config_.processes) {
    if (peer != rank) continue;
    poller_.remove_process(pid);
    if (Link* link = link_to(rank)) read_link(*link);
    if (has_gone_home()) return;
    step({Event::Kind::kProcessGone, rank, {}, "its process " + std::to_string(pid) + " " + how});
  }
}

void Watch::step(const Event& event) {
  Actions actions = machine_.step(event, now_ns());
  const bool is_frame = event.kind == Event::Kind::kFrame;
  const bool said_goodbye = is_frame && event.frame.type == FrameType::kGoodbye;
  if (said_goodbye || (is_frame && event.frame.type == FrameType::kLeft)) note_left();
  // Sent first, for whoever gets the verdict here may end the process at once: the others would
  // take that for the cause.
  for (const auto& [to, frame] : actions.sends) send(to, frame);
  if (actions.verdict) raise(std::move(*actions.verdict));
  show(actions);
  // Who said goodbye to rank 0 waits for the link's end, to know that it was heard.
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
  for (std::atomic<std::uint32_t>* end : config_.ends) end->store(1, std::memory_order_relaxed);
  if (!abort_.raise(std::move(verdict))) return;
  for (const Bell* bell : config_.bells) bell->ring();
  exit_at_ = deadline_after(now_ns(), config_.exit_grace + kHookGrace);
  tell_news();
}

std::string Watch::who(int rank) const {
  const auto i = static_cast<std::size_t>(rank);
  std::string text = "rank " + std::to_string(rank);
  if (i < config_.hosts.size() && !config_.hosts[i].empty()) text += " on " + config_.hosts[i];
  return text;
}

// Hints, where everybody can see them: for those who ask, and in the log.
void Watch::show(const Actions& actions) {
  if (!actions.warning.empty()) log_.line(actions.warning);
  if (actions.hints.empty() && actions.hints_over.empty()) return;
  {
    const std::lock_guard lock(news_mutex_);
    const auto forget = [&](int rank) {
      std::erase_if(hints_, [&](const Hint& hint) { return hint.rank == rank; });
    };
    for (const int rank : actions.hints_over) forget(rank);
    for (const Hint& hint : actions.hints) {
      forget(hint.rank);
      hints_.push_back(hint);
    }
  }
  for (const int rank : actions.hints_over) {
    if (abort_.verdict() == nullptr && rank != config_.shape.rank) {
      log_.line(who(rank) + " is back");
    }
  }
  for (const Hint& hint : actions.hints) {
    std::string text = who(hint.rank);
    text += hint.rank == config_.shape.rank ? " (this rank)" : "";
    text += std::string(" is ") + hint_name(hint.kind) + ": " + hint.cause;
    for (std::size_t i = 0; i < hint.evidence.size(); ++i) {
      text += (i == 0 ? " (" : "; ") + hint.evidence[i];
    }
    log_.line(text + (hint.evidence.empty() ? "" : ")"));
  }
  tell_news();
}

void Watch::send(int to, const Frame& frame) {
  Link* link = link_to(to);
  if (link == nullptr || is_silent(to)) return;
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
  // A link that has ended, and was not read yet, counts.
  std::vector<int> ranks;
  for (const auto& [rank, link] : links_) ranks.push_back(rank);
  for (const int rank : ranks) {
    if (Link* link = link_to(rank)) read_link(*link);
  }
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
    frame.verdict.cause = interrupted ? "interrupted" : kClosedItsGroup;
    frame.collectives = ending_->collectives;
    for (auto& [rank, link] : links_) {
      if (is_silent(rank)) continue;
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
  if (!has_loud_links() || now_ns() >= end_at_) return true;
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
  log_.last_words("ends with status " + std::to_string(kExitStatus) + ": " + who(verdict.rank) +
                  " " + verdict_name(verdict.kind) + " (" + verdict.cause +
                  "), and the program did not take the error within " +
                  std::to_string((config_.exit_grace + kHookGrace) / kMillisecond) + " ms");
  _exit(kExitStatus);
}

}  // namespace standfast
