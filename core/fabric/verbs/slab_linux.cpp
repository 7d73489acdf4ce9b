#include <sys/mman.h>

#include "core/fabric/verbs/domain.h"

namespace standfast::verbs {

// Otherwise a fork makes the pages copy-on-write, and older kernels give the parent the copy, where
// no device writes. A kernel that refuses leaves things as they were.
void keep_from_children(void* memory, std::size_t bytes) {
  (void)madvise(memory, bytes, MADV_DONTFORK);
}

}  // namespace standfast::verbs
