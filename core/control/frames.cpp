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
};

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
         type <= static_cast<std::uint8_t>(FrameType::kLeft);
}

bool is_kind(std::uint8_t kind) {
  return kind <= static_cast<std::uint8_t>(VerdictKind::kInternal);
}

}  // namespace

std::vector<std::byte> encode(const Frame& frame) {
  const Verdict& verdict = frame.verdict;
  std::vector<std::byte> out(kFrameHeadBytes);
  put_text(out, verdict.cause);
  put_text(out, verdict.remote_type);
  put_text(out, verdict.remote_message);
  put_text(out, verdict.remote_traceback);
  const std::size_t evidence = std::min(verdict.evidence.size(), kEvidenceMax);
  for (std::size_t i = 0; i < evidence; ++i) {
    put_text(out, cut(verdict.evidence[i], kEvidenceBytesMax));
  }
  std::byte* head = out.data();
  store(head + kAtMagic, kMagic);
  store(head + kAtType, static_cast<std::uint8_t>(frame.type));
  store(head + kAtKind, static_cast<std::uint8_t>(verdict.kind));
  store(head + kAtSuspicion, static_cast<std::uint8_t>(frame.suspicion));
  store(head + kAtGeneration, frame.generation);
  store(head + kAtRank, static_cast<std::int32_t>(verdict.rank));
  store(head + kAtReporter, static_cast<std::int32_t>(verdict.reporter));
  store(head + kAtTextBytes, static_cast<std::uint32_t>(out.size() - kFrameHeadBytes));
  store(head + kAtEvidence, static_cast<std::uint32_t>(evidence));
  store(head + kAtCollectives, frame.collectives);
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
  garbage_ = load<std::uint32_t>(head + kAtMagic) != kMagic || text_bytes > kFrameTextMax ||
             !is_type(type) || !is_kind(kind);
  if (garbage_ || buffer_.size() < kFrameHeadBytes + text_bytes) return std::nullopt;

  Frame frame;
  frame.type = static_cast<FrameType>(type);
  frame.generation = load<std::uint32_t>(head + kAtGeneration);
  frame.suspicion = load<std::uint8_t>(head + kAtSuspicion) != 0;
  frame.collectives = load<std::uint32_t>(head + kAtCollectives);
  frame.verdict.kind = static_cast<VerdictKind>(kind);
  frame.verdict.rank = load<std::int32_t>(head + kAtRank);
  frame.verdict.reporter = load<std::int32_t>(head + kAtReporter);
  Texts texts(head + kFrameHeadBytes, text_bytes);
  frame.verdict.cause = texts.next();
  frame.verdict.remote_type = texts.next();
  frame.verdict.remote_message = texts.next();
  frame.verdict.remote_traceback = texts.next();
  const auto evidence = load<std::uint32_t>(head + kAtEvidence);
  for (std::uint32_t i = 0; i < evidence && texts.good(); ++i) {
    frame.verdict.evidence.push_back(texts.next());
  }
  garbage_ = !texts.good();
  buffer_.erase(buffer_.begin(),
                buffer_.begin() + static_cast<std::ptrdiff_t>(kFrameHeadBytes + text_bytes));
  return garbage_ ? std::nullopt : std::optional(std::move(frame));
}

}  // namespace standfast
