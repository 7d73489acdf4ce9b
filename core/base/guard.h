// Whether waits look at the abort word and operations tell the watch what they do. Only the
// measurement of what that costs (bench/guard_cost.cpp) is ever built without.
#pragma once

namespace standfast {

#ifdef STANDFAST_UNGUARDED
inline constexpr bool kGuarded = false;
#else
inline constexpr bool kGuarded = true;
#endif

}  // namespace standfast
