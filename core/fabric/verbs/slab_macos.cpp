#include <mach/vm_inherit.h>
#include <sys/mman.h>

#include "core/fabric/verbs/domain.h"

namespace standfast::verbs {

void keep_from_children(void* memory, std::size_t bytes) {
  (void)minherit(memory, bytes, VM_INHERIT_NONE);
}

}  // namespace standfast::verbs
