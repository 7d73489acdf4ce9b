#include "core/fabric/verbs/library.h"

namespace standfast::verbs {

const char* const kLibraryNames[] = {"libibverbs.so.1", nullptr};
const char* const kLibraryHint =
    "install rdma-core (Debian, Ubuntu: apt-get install ibverbs-providers)";

}  // namespace standfast::verbs
