// What travels on a control link, byte by byte.
#include "core/control/frames.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/base/bytes.h"

namespace standfast {
namespace {

constexpr std::size_t kTextMax = 8 * 1024;
constexpr std::size_t kAtType = 4;
constexpr std::size_t kAtKind = 5;
constexpr std::size_t kAtTextBytes = 20;
constexpr std::size_t kAtEvidence = 24;

Frame sample() {
  Frame frame;
  frame.type = FrameType::kReport;
  frame.generation = 0xfeedbeef;
  frame.suspicion = true;
  frame.collectives = 0xabcdef01;
  frame.verdict.kind = VerdictKind::kFailed;
  frame.verdict.rank = 3;
  frame.verdict.reporter = -1;
  frame.verdict.cause = "ValueError: no";
  frame.verdict.remote_type = "ValueError";
  frame.verdict.remote_message = std::string("no\0ne", 5);
  frame.verdict.remote_traceback = "Traceback ...\n  in f\n";
  frame.verdict.evidence = {"rank 1: wire", "", "rank 2: wire"};
  return frame;
}

void check_same(const Frame& a, const Frame& b) {
  CHECK(a.type == b.type);
  CHECK(a.generation == b.generation);
  CHECK(a.suspicion == b.suspicion);
  CHECK(a.collectives == b.collectives);
  CHECK(a.verdict.kind == b.verdict.kind);
  CHECK(a.verdict.rank == b.verdict.rank);
  CHECK(a.verdict.reporter == b.verdict.reporter);
  CHECK(a.verdict.cause == b.verdict.cause);
  CHECK(a.verdict.remote_type == b.verdict.remote_type);
  CHECK(a.verdict.remote_message == b.verdict.remote_message);
  CHECK(a.verdict.remote_traceback == b.verdict.remote_traceback);
  CHECK(a.verdict.evidence == b.verdict.evidence);
}

Frame beat() {
  Frame frame;
  frame.type = FrameType::kBeat;
  frame.generation = 4;
  frame.subject = 3;
  frame.data_age = 12'345'678'901;
  Status& status = frame.status;
  status.started = 0xfffffffe;
  status.finished = 0xfffffffd;
  status.digest = 0x0123456789abcdef;
  for (int i = 0; i < 2; ++i) {
    Activity& half = status.halves[i];
    half.tag.seq = 77u + static_cast<std::uint32_t>(i);
    half.tag.kind = i == 0 ? OpKind::kAllReduce : OpKind::kSend;
    half.tag.dtype = DType::kFloat32;
    half.tag.root_or_tag = -5;
    half.tag.count = std::uint64_t{1} << 40;
    half.running = i == 0;
    half.waiting_for = i == 0 ? 1023 : -1;
    half.waited = i == 0 ? 9 * kSecond : 0;
  }
  status.program = {true, std::uint64_t{1} << 33, 7 * kSecond, "decode"};
  return frame;
}

Frame hint() {
  Frame frame;
  frame.type = FrameType::kHint;
  frame.generation = 4;
  frame.hint.kind = HintKind::kWedged;
  frame.hint.rank = 2;
  frame.hint.reporter = 0;
  frame.hint.cause = "it does not get on";
  frame.hint.evidence = {"last beat 0.2 s ago", ""};
  return frame;
}

std::optional<Frame> read_once(const std::vector<std::byte>& bytes, FrameReader& reader) {
  reader.append(bytes.data(), bytes.size());
  return reader.next();
}

std::optional<Frame> round_trip(const Frame& frame) {
  FrameReader reader;
  return read_once(encode(frame), reader);
}

bool is_garbage(const std::vector<std::byte>& bytes) {
  FrameReader reader;
  const bool is_frame = read_once(bytes, reader).has_value();
  return !is_frame && reader.is_garbage();
}

// Whether a text is whole characters of UTF-8, as Python will want it.
bool is_utf8(const std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if ((lead & 0xc0) == 0x80 || at + length > text.size()) return false;
    at += length;
  }
  return true;
}

}  // namespace

// What is encoded is read back, every type, every kind, every field.
TEST_CASE("frames: round trip") {
  const auto back = round_trip(sample());
  REQUIRE(back);
  check_same(*back, sample());
  for (int type = 1; type <= static_cast<int>(FrameType::kHintOver); ++type) {
    for (int kind = 0; kind <= static_cast<int>(VerdictKind::kInternal); ++kind) {
      Frame frame;
      frame.type = static_cast<FrameType>(type);
      frame.verdict.kind = static_cast<VerdictKind>(kind);
      const auto same = round_trip(frame);
      REQUIRE(same);
      check_same(*same, frame);
    }
  }
}

// A beat carries a rank's whole status, a hint all that is known.
TEST_CASE("frames: beats and hints") {
  const Frame sent = beat();
  const auto back = round_trip(sent);
  REQUIRE(back);
  check_same(*back, sent);
  CHECK(back->subject == sent.subject);
  CHECK(back->data_age == sent.data_age);
  CHECK(back->status.started == sent.status.started);
  CHECK(back->status.finished == sent.status.finished);
  CHECK(back->status.digest == sent.status.digest);
  for (int i = 0; i < 2; ++i) {
    CHECK(back->status.halves[i].tag == sent.status.halves[i].tag);
    CHECK(back->status.halves[i].running == sent.status.halves[i].running);
    CHECK(back->status.halves[i].waiting_for == sent.status.halves[i].waiting_for);
    CHECK(back->status.halves[i].waited == sent.status.halves[i].waited);
    CHECK(back->status.halves[i].receives == (i == 0));
  }
  CHECK(back->status.program.busy);
  CHECK(back->status.program.step == sent.status.program.step);
  CHECK(back->status.program.age == sent.status.program.age);
  CHECK(back->status.program.label == "decode");

  const auto told = round_trip(hint());
  REQUIRE(told);
  CHECK(told->type == FrameType::kHint);
  CHECK(told->hint.kind == HintKind::kWedged);
  CHECK(told->hint.rank == 2);
  CHECK(told->hint.reporter == 0);
  CHECK(told->hint.cause == hint().hint.cause);
  CHECK(told->hint.evidence == hint().hint.evidence);
}

// A label that is too long is cut between characters; a status of another size is none.
TEST_CASE("frames: damaged beats") {
  Frame labelled = beat();
  labelled.status.program.label.clear();
  while (labelled.status.program.label.size() < 200)
    labelled.status.program.label += "\xe2\x82\xac";
  const auto back = round_trip(labelled);
  REQUIRE(back);
  CHECK(is_utf8(back->status.program.label));
  CHECK(back->status.program.label.size() == 63);
  const std::vector<std::byte> good = encode(beat());
  for (const std::size_t bytes : {kFrameHeadBytes, good.size() - 7, good.size() + 59}) {
    CAPTURE(bytes);
    std::vector<std::byte> resized = good;
    resized.resize(bytes);
    store(resized.data() + kAtTextBytes, static_cast<std::uint32_t>(bytes - kFrameHeadBytes));
    CHECK(is_garbage(resized));
  }
  std::vector<std::byte> no_hint = encode(hint());
  no_hint[32] = std::byte{7};
  CHECK(is_garbage(no_hint));
}

// However a stream is cut, the same frames come out, and nothing before its last byte.
TEST_CASE("frames: cut at every byte") {
  Frame second = sample();
  second.verdict.cause = "second";
  std::vector<std::byte> stream = encode(sample());
  const std::size_t first_bytes = stream.size();
  const std::vector<std::byte> rest = encode(second);
  stream.insert(stream.end(), rest.begin(), rest.end());
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    CAPTURE(cut);
    FrameReader reader;
    reader.append(stream.data(), cut);
    std::vector<Frame> frames;
    while (auto frame = reader.next()) frames.push_back(*frame);
    CHECK(frames.size() == (cut == stream.size() ? 2u : cut >= first_bytes ? 1u : 0u));
    reader.append(stream.data() + cut, stream.size() - cut);
    while (auto frame = reader.next()) frames.push_back(*frame);
    REQUIRE(frames.size() == 2);
    check_same(frames[0], sample());
    check_same(frames[1], second);
    CHECK_FALSE(reader.is_garbage());
  }
}

// One byte at a time is only slower.
TEST_CASE("frames: byte by byte") {
  const std::vector<std::byte> bytes = encode(sample());
  FrameReader reader;
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) {
    reader.append(&bytes[i], 1);
    REQUIRE_FALSE(reader.next());
  }
  reader.append(&bytes.back(), 1);
  CHECK(reader.next().has_value());
}

// Texts of any length fit: too long ones are cut, and evidence is bounded, so that the receiver
// takes what the sender sends.
TEST_CASE("frames: texts that are too long are cut") {
  Frame frame = sample();
  const std::string endless(1 << 20, 'x');
  frame.verdict.cause = endless;
  frame.verdict.remote_type = endless;
  frame.verdict.remote_message = endless;
  frame.verdict.remote_traceback = endless;
  frame.verdict.evidence.assign(20, endless);
  const auto back = round_trip(frame);
  REQUIRE(back);
  CHECK(back->verdict.cause == endless.substr(0, kTextMax));
  CHECK(back->verdict.remote_traceback == endless.substr(0, kTextMax));
  CHECK(back->verdict.evidence.size() == 8);
  CHECK(back->verdict.evidence.front() == endless.substr(0, 512));
  CHECK(encode(frame).size() <= kFrameHeadBytes + kFrameTextMax);

  frame.verdict.cause = std::string(kTextMax, 'y');
  CHECK(round_trip(frame)->verdict.cause == frame.verdict.cause);
}

// A text is cut between characters: half of one would make the whole error unreadable in Python.
TEST_CASE("frames: a cut text is still UTF-8") {
  for (const std::string character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x94\xa5"}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      CAPTURE(shift);
      Frame frame = sample();
      frame.verdict.cause = std::string(shift, 'x');
      while (frame.verdict.cause.size() < 2 * kTextMax) frame.verdict.cause += character;
      frame.verdict.evidence = {frame.verdict.cause};
      const auto back = round_trip(frame);
      REQUIRE(back);
      CHECK(is_utf8(back->verdict.cause));
      CHECK(back->verdict.cause.size() > kTextMax - 4);
      CHECK(is_utf8(back->verdict.evidence.at(0)));
    }
  }
  Frame broken = sample();
  broken.verdict.cause = std::string(2 * kTextMax, '\x80');  // not UTF-8 to begin with
  CHECK(round_trip(broken).has_value());
}

// A stream that is none of ours is known by its first head, and is not believed again afterwards.
TEST_CASE("frames: garbage") {
  const std::vector<std::byte> good = encode(sample());
  const auto with = [&](std::size_t at, std::uint8_t value) {
    std::vector<std::byte> bytes = good;
    bytes[at] = std::byte{value};
    return bytes;
  };
  for (std::size_t at = 0; at < 4; ++at) CHECK(is_garbage(with(at, 0)));
  for (const int type : {0, 9, 255}) {
    CHECK(is_garbage(with(kAtType, static_cast<std::uint8_t>(type))));
  }
  const auto no_kind =
      static_cast<std::uint8_t>(static_cast<int>(VerdictKind::kDigestMismatch) + 1);
  CHECK(is_garbage(with(kAtKind, no_kind)));
  CHECK(is_garbage(with(kAtKind, 255)));
  CHECK(is_garbage(std::vector<std::byte>(kFrameHeadBytes, std::byte{0xff})));
  CHECK(is_garbage(std::vector<std::byte>(kFrameHeadBytes, std::byte{0})));

  const char* const http =
      "GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: a scanner\r\n\r\n....";
  std::vector<std::byte> request(std::strlen(http));
  copy_bytes(request.data(), http, request.size());
  CHECK(is_garbage(request));

  FrameReader reader;
  CHECK_FALSE(read_once(std::vector<std::byte>(100, std::byte{7}), reader));
  CHECK(reader.is_garbage());
  CHECK_FALSE(read_once(good, reader));
  CHECK(reader.is_garbage());
}

// Garbage behind a good frame does not take the frame away.
TEST_CASE("frames: garbage after a frame") {
  std::vector<std::byte> bytes = encode(sample());
  bytes.resize(bytes.size() + kFrameHeadBytes, std::byte{0xee});
  FrameReader reader;
  CHECK(read_once(bytes, reader).has_value());
  CHECK_FALSE(reader.is_garbage());
  CHECK_FALSE(reader.next());
  CHECK(reader.is_garbage());
}

// A length that no frame of ours has is refused at once, not waited or allocated for.
TEST_CASE("frames: absurd lengths") {
  const std::vector<std::byte> good = encode(sample());
  for (const std::uint32_t length :
       {std::uint32_t{kFrameTextMax + 1}, std::uint32_t{1} << 31, ~std::uint32_t{0}}) {
    std::vector<std::byte> bytes = good;
    store(bytes.data() + kAtTextBytes, length);
    bytes.resize(kFrameHeadBytes);
    CHECK(is_garbage(bytes));
  }
  std::vector<std::byte> text_too_long = good;
  store(text_too_long.data() + kFrameHeadBytes, ~std::uint32_t{0});
  CHECK(is_garbage(text_too_long));
  std::vector<std::byte> much_evidence = good;
  store(much_evidence.data() + kAtEvidence, ~std::uint32_t{0});
  CHECK(is_garbage(much_evidence));
}

// A frame whose texts end too soon is garbage, whichever text it is and wherever it ends.
TEST_CASE("frames: truncated texts") {
  const std::vector<std::byte> good = encode(sample());
  for (std::size_t bytes = kFrameHeadBytes; bytes < good.size(); ++bytes) {
    CAPTURE(bytes);
    std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes));
    store(cut.data() + kAtTextBytes, static_cast<std::uint32_t>(bytes - kFrameHeadBytes));
    CHECK(is_garbage(cut));
  }
}

// What a later version adds behind the texts is passed over.
TEST_CASE("frames: room for later versions") {
  std::vector<std::byte> bytes = encode(sample());
  const std::size_t text_bytes = bytes.size() - kFrameHeadBytes + 10;
  bytes.resize(bytes.size() + 10, std::byte{0xab});
  store(bytes.data() + kAtTextBytes, static_cast<std::uint32_t>(text_bytes));
  const std::vector<std::byte> next = encode(sample());
  bytes.insert(bytes.end(), next.begin(), next.end());
  FrameReader reader;
  CHECK(read_once(bytes, reader).has_value());
  CHECK(reader.next().has_value());
}

// No bytes at all make the reader read what is not there (the sanitizers look) or run on forever.
TEST_CASE("frames: random damage") {
  std::mt19937 random(20240613);
  const std::vector<std::byte> frames_of_all_kinds[] = {encode(sample()), encode(beat()),
                                                        encode(hint())};
  for (int run = 0; run < 6000; ++run) {
    CAPTURE(run);
    std::vector<std::byte> bytes = frames_of_all_kinds[run % 3];
    for (std::uint32_t hits = random() % 4 + 1; hits > 0; --hits) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    FrameReader reader;
    int frames = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t step = std::min<std::size_t>(random() % 60 + 1, bytes.size() - at);
      reader.append(bytes.data() + at, step);
      while (reader.next()) ++frames;
      at += step;
    }
    CHECK(frames <= 1);
  }
}

}  // namespace standfast
