#include "core/fabric/tcp/nearby.h"

namespace standfast {

// There is no choice of congestion control here.
void ease_nearby(int) {}

}  // namespace standfast
