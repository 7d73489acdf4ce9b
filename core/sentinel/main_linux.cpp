// The sentinel: tells those whom no neighbour of a rank can tell. It waits on the rank's beacon,
// says on control links of the rank that it died, and ends; or ends silently when the rank leaves.
// Started by core/control/sentinel_linux.cpp; holds nothing of the rank but those links.
//   _sentinel MEMORY RANK LINK,LINK,... FRAME
// MEMORY and LINK are descriptors, FRAME is what it writes, in hex. It knows no format.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "core/base/clock.h"
#include "core/control/beacon_linux.h"

namespace {

using namespace standfast;

constexpr int kLinksMax = 1024;
constexpr std::size_t kFrameMax = 16 * 1024;
constexpr int kUsage = 64;  // EX_USAGE
// Bounds how long it outlives a rank whose last wake was lost.
constexpr Nanos kLookAgain = 100 * kMillisecond;

int links[kLinksMax];
int link_count = 0;
unsigned char frame[kFrameMax];
std::size_t frame_bytes = 0;

void read_links(char* text) {
  while (*text != '\0' && link_count < kLinksMax) {
    links[link_count++] = static_cast<int>(std::strtol(text, &text, 10));
    if (*text == ',') ++text;
  }
}

unsigned digit(char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); }

void read_frame(const char* text) {
  while (text[0] != '\0' && text[1] != '\0' && frame_bytes < kFrameMax) {
    frame[frame_bytes++] = static_cast<unsigned char>(digit(text[0]) << 4 | digit(text[1]));
    text += 2;
  }
}

bool is_link(int fd) {
  for (int i = 0; i < link_count; ++i) {
    if (links[i] == fd) return true;
  }
  return false;
}

// What else the rank let its children inherit: an end that is held here would hide its death from
// whoever has the other one.
void close_all_but_links() {
  int highest = -1;
  for (int i = 0; i < link_count; ++i) highest = links[i] > highest ? links[i] : highest;
  for (int fd = 0; fd < highest; ++fd) {
    if (!is_link(fd)) close(fd);
  }
  const auto first = static_cast<unsigned>(highest + 1);
  if (syscall(SYS_close_range, first, ~0U, 0) == 0) return;
  const long limit = sysconf(_SC_OPEN_MAX);
  for (int fd = highest + 1; fd < limit; ++fd) close(fd);
}

const BeaconWord* word_of(int memory, std::size_t rank) {
  const std::size_t bytes = (rank + 1) * sizeof(BeaconSlot);
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, memory, 0);
  return mapped == MAP_FAILED ? nullptr : &static_cast<BeaconSlot*>(mapped)[rank].word;
}

BeaconState await_end(const BeaconWord& word) {
  for (;;) {
    const std::uint32_t seen = word.load(std::memory_order_acquire);
    if (beacon_state(seen) != BeaconState::kHeld) return beacon_state(seen);
    beacon_wait(word, seen, kLookAgain);
  }
}

// The end of the stream is told as well: it says the same to whoever does not take the frame.
void tell() {
  for (int i = 0; i < link_count; ++i) {
    send(links[i], frame, frame_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(links[i], SHUT_WR);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return kUsage;
  const BeaconWord* word =
      word_of(std::atoi(arguments[1]), static_cast<std::size_t>(std::atoi(arguments[2])));
  if (word == nullptr) return EXIT_FAILURE;
  read_links(arguments[3]);
  read_frame(arguments[4]);
  close_all_but_links();
  if (chdir("/") != 0) return EXIT_FAILURE;
  if (await_end(*word) == BeaconState::kDied) {
    beacon_wake(*word);  // the kernel has woken only one: a neighbour waits as well
    tell();
  }
  return EXIT_SUCCESS;
}
