#include "core/control/frames.h"

#include <algorithm>
#include <string_view>

#include "core/base/bytes.h"

namespace standfast {
namespace {

constexpr std::uint32_t kMagic = 0x31634653;  // "SFc1"

// The head's layout, in bytes from its start. What is not named is zero and belongs to later
// versions.
enum Offset : std::size_t {
  kAtMagic = 0,
  kAtType = 4,
  kAtKind = 5,
  kAtSuspicion = 6,
  kAtGeneration = 8,
  kAtRank = 12,
  kAtReporter = 16,
  kAtTextBytes = 20,
  kAtEvidence = 24,  // how many pieces of evidence follow the four fixed texts
  kAtCollectives = 28,
  kAtHint = 32,
  kAtSubject = 36,
  kAtDataAge = 40,
};

// A status as a beat carries it, in the place of the texts; its label follows.
enum StatusOffset : std::size_t {
  kAtStarted = 0,
  kAtFinished = 4,
  kAtDigest = 8,
  kAtHalves = 16,
  kAtProgramStep = 112,
  kAtProgramAge = 120,
  kAtProgramBusy = 128,
  kAtLabel = 136,
};
// Of one half, at kAtHalves.
enum HalfOffset : std::size_t {
  kAtTag = 0,
  kAtWaited = 24,
  kAtWaitingFor = 32,
  kAtRunning = 36,
  kHalfBytes = 48,
};
static_assert(kAtHalves + 2 * kHalfBytes == kAtProgramStep);
constexpr std::size_t kLabelMax = 64;

constexpr std::size_t kTextMax = 8 * 1024;
constexpr std::size_t kEvidenceMax = 8;
constexpr std::size_t kEvidenceBytesMax = 512;

// What fits of a text, up to the end of a character: Python takes whole ones only.
std::string_view cut(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  const auto splits = [&](std::size_t at) { return (text[at] & 0xc0) == 0x80; };
  std::size_t end = bytes_max;
  while (end + 3 > bytes_max && splits(end)) --end;
  return text.substr(0, end);
}

void put_text(std::vector<std::byte>& to, std::string_view text) {
  text = cut(text, kTextMax);
  std::byte length[4];
  store(length, static_cast<std::uint32_t>(text.size()));
  to.insert(to.end(), length, length + 4);
  const std::byte* bytes = as_bytes(text.data());
  to.insert(to.end(), bytes, bytes + text.size());
}

// Takes texts off a span, and says if they were all there.
class Texts {
 public:
  Texts(const std::byte* at, std::size_t bytes) : at_(at), left_(bytes) {}

  std::string next() {
    if (left_ < 4) return fail();
    const std::size_t length = load<std::uint32_t>(at_);
    if (length > left_ - 4) return fail();
    std::string text(reinterpret_cast<const char*>(at_ + 4), length);
    at_ += 4 + length;
    left_ -= 4 + length;
    return text;
  }
  bool good() const { return good_; }

 private:
  std::string fail() {
    good_ = false;
    left_ = 0;
    return {};
  }
  const std::byte* at_;
  std::size_t left_;
  bool good_ = true;
};

bool is_type(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(FrameType::kGoodbye) &&
         type <= static_cast<std::uint8_t>(FrameType::kHintOver);
}

bool is_hint(std::uint8_t hint) { return hint <= static_cast<std::uint8_t>(HintKind::kCut); }

bool is_kind(std::uint8_t kind) {
  return kind <= static_cast<std::uint8_t>(VerdictKind::kDigestMismatch);
}

void put_status(std::vector<std::byte>& to, const Status& status) {
  const std::size_t begin = to.size();
  const std::string_view label = cut(status.program.label, kLabelMax);
  to.resize(begin + kAtLabel + label.size());
  std::byte* at = to.data() + begin;
  store(at + kAtStarted, status.started);
  store(at + kAtFinished, status.finished);
  store(at + kAtDigest, status.digest);
  for (std::size_t i = 0; i < 2; ++i) {
    const Activity& half = status.halves[i];
    std::byte* half_at = at + kAtHalves + i * kHalfBytes;
    store(half_at + kAtTag, half.tag);
    store(half_at + kAtWaited, half.waited);
    store(half_at + kAtWaitingFor, static_cast<std::int32_t>(half.waiting_for));
    store(half_at + kAtRunning, static_cast<std::uint8_t>(half.running));
  }
  store(at + kAtProgramStep, status.program.step);
  store(at + kAtProgramAge, status.program.age);
  store(at + kAtProgramBusy, static_cast<std::uint8_t>(status.program.busy));
  copy_bytes(at + kAtLabel, label.data(), label.size());
}

bool take_status(const std::byte* at, std::size_t bytes, Status& status) {
  if (bytes < kAtLabel || bytes > kAtLabel + kLabelMax) return false;
  status.started = load<std::uint32_t>(at + kAtStarted);
  status.finished = load<std::uint32_t>(at + kAtFinished);
  status.digest = load<std::uint64_t>(at + kAtDigest);
  for (std::size_t i = 0; i < 2; ++i) {
    Activity& half = status.halves[i];
    const std::byte* half_at = at + kAtHalves + i * kHalfBytes;
    half.tag = load<Tag>(half_at + kAtTag);
    half.waited = load<Nanos>(half_at + kAtWaited);
    half.waiting_for = load<std::int32_t>(half_at + kAtWaitingFor);
    half.running = load<std::uint8_t>(half_at + kAtRunning) != 0;
  }
  status.program.step = load<std::uint64_t>(at + kAtProgramStep);
  status.program.age = load<Nanos>(at + kAtProgramAge);
  status.program.busy = load<std::uint8_t>(at + kAtProgramBusy) != 0;
  status.program.label.assign(reinterpret_cast<const char*>(at + kAtLabel), bytes - kAtLabel);
  return true;
}

// The number of pieces written.
std::uint32_t put_evidence(std::vector<std::byte>& to, const std::vector<std::string>& evidence) {
  const std::size_t count = std::min(evidence.size(), kEvidenceMax);
  for (std::size_t i = 0; i < count; ++i) put_text(to, cut(evidence[i], kEvidenceBytesMax));
  return static_cast<std::uint32_t>(count);
}

bool is_about_hint(FrameType type) {
  return type == FrameType::kHint || type == FrameType::kHintOver;
}

std::uint32_t put_texts(std::vector<std::byte>& out, const Frame& frame) {
  if (frame.type == FrameType::kBeat) {
    put_status(out, frame.status);
    return 0;
  }
  const Verdict& verdict = frame.verdict;
  const bool hint = is_about_hint(frame.type);
  put_text(out, hint ? frame.hint.cause : verdict.cause);
  put_text(out, verdict.remote_type);
  put_text(out, verdict.remote_message);
  put_text(out, verdict.remote_traceback);
  return put_evidence(out, hint ? frame.hint.evidence : verdict.evidence);
}

// False if the texts are none.
bool take_texts(const std::byte* at, std::size_t bytes, std::uint32_t evidence, Frame& frame) {
  if (frame.type == FrameType::kBeat) return take_status(at, bytes, frame.status);
  Texts texts(at, bytes);
  const bool hint = is_about_hint(frame.type);
  (hint ? frame.hint.cause : frame.verdict.cause) = texts.next();
  frame.verdict.remote_type = texts.next();
  frame.verdict.remote_message = texts.next();
  frame.verdict.remote_traceback = texts.next();
  auto& pieces = hint ? frame.hint.evidence : frame.verdict.evidence;
  for (std::uint32_t i = 0; i < evidence && texts.good(); ++i) pieces.push_back(texts.next());
  return texts.good();
}

}  // namespace

std::vector<std::byte> encode(const Frame& frame) {
  const Verdict& verdict = frame.verdict;
  const bool hint = is_about_hint(frame.type);
  std::vector<std::byte> out(kFrameHeadBytes);
  const std::uint32_t evidence = put_texts(out, frame);
  std::byte* head = out.data();
  store(head + kAtMagic, kMagic);
  store(head + kAtType, static_cast<std::uint8_t>(frame.type));
  store(head + kAtKind, static_cast<std::uint8_t>(verdict.kind));
  store(head + kAtSuspicion, static_cast<std::uint8_t>(frame.suspicion));
  store(head + kAtGeneration, frame.generation);
  store(head + kAtRank, static_cast<std::int32_t>(hint ? frame.hint.rank : verdict.rank));
  store(head + kAtReporter,
        static_cast<std::int32_t>(hint ? frame.hint.reporter : verdict.reporter));
  store(head + kAtTextBytes, static_cast<std::uint32_t>(out.size() - kFrameHeadBytes));
  store(head + kAtEvidence, evidence);
  store(head + kAtCollectives, frame.collectives);
  store(head + kAtHint, static_cast<std::uint8_t>(frame.hint.kind));
  store(head + kAtSubject, static_cast<std::int32_t>(frame.subject));
  store(head + kAtDataAge, frame.data_age);
  return out;
}

void FrameReader::append(const std::byte* bytes, std::size_t count) {
  buffer_.insert(buffer_.end(), bytes, bytes + count);
}

std::optional<Frame> FrameReader::next() {
  if (garbage_ || buffer_.size() < kFrameHeadBytes) return std::nullopt;
  const std::byte* head = buffer_.data();
  const std::size_t text_bytes = load<std::uint32_t>(head + kAtTextBytes);
  const auto type = load<std::uint8_t>(head + kAtType);
  const auto kind = load<std::uint8_t>(head + kAtKind);
  const auto hint = load<std::uint8_t>(head + kAtHint);
  garbage_ = load<std::uint32_t>(head + kAtMagic) != kMagic || text_bytes > kFrameTextMax ||
             !is_type(type) || !is_kind(kind) || !is_hint(hint);
  if (garbage_ || buffer_.size() < kFrameHeadBytes + text_bytes) return std::nullopt;

  Frame frame;
  frame.type = static_cast<FrameType>(type);
  frame.generation = load<std::uint32_t>(head + kAtGeneration);
  frame.suspicion = load<std::uint8_t>(head + kAtSuspicion) != 0;
  frame.collectives = load<std::uint32_t>(head + kAtCollectives);
  frame.verdict.kind = static_cast<VerdictKind>(kind);
  frame.verdict.rank = load<std::int32_t>(head + kAtRank);
  frame.verdict.reporter = load<std::int32_t>(head + kAtReporter);
  frame.hint.kind = static_cast<HintKind>(hint);
  frame.hint.rank = frame.verdict.rank;
  frame.hint.reporter = frame.verdict.reporter;
  frame.subject = load<std::int32_t>(head + kAtSubject);
  frame.data_age = load<Nanos>(head + kAtDataAge);
  garbage_ = !take_texts(head + kFrameHeadBytes, text_bytes,
                         load<std::uint32_t>(head + kAtEvidence), frame);
  buffer_.erase(buffer_.begin(),
                buffer_.begin() + static_cast<std::ptrdiff_t>(kFrameHeadBytes + text_bytes));
  return garbage_ ? std::nullopt : std::optional(std::move(frame));
}

}  // namespace standfast
