// How the functions of the verbs API are declared here.
#pragma once

#include <cerrno>

// Darwin's numbers, on any system: programs that run on Macs compare with these.
namespace standfast::emulator::darwin {
inline constexpr int kNxio = 6;
inline constexpr int kNoMemory = 12;
inline constexpr int kBusy = 16;
inline constexpr int kInvalid = 22;
inline constexpr int kTimedOut = 60;
inline constexpr int kNotSupported = 102;
}  // namespace standfast::emulator::darwin

#define VERBS_API extern "C" __attribute__((visibility("default")))

namespace standfast::emulator {

template <typename T>
T* refuse(int number) {
  errno = number;
  return nullptr;
}

}  // namespace standfast::emulator
