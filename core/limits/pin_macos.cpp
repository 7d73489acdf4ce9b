// macOS places threads as it likes; nobody has run this file there.
#include "core/limits/limits.h"

namespace standfast {

bool pin_to_core(int) { return false; }

}  // namespace standfast
