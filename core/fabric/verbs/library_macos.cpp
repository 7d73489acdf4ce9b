#include "core/fabric/verbs/library.h"

namespace standfast::verbs {

const char* const kLibraryNames[] = {"librdma.dylib", "/usr/lib/librdma.dylib", nullptr};
const char* const kLibraryHint = "RDMA over Thunderbolt needs macOS 26.2 or later";

}  // namespace standfast::verbs
