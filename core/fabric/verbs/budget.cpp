#include "core/fabric/verbs/budget.h"

namespace standfast::verbs {

Need need_of(int rails, std::size_t slab_bytes, const DeviceOffer& offer) {
  const std::string rails_text =
      std::to_string(rails) + (rails == 1 ? " connection" : " connections");
  if (offer.regions < 1 || (offer.region_bytes_max != 0 && slab_bytes > offer.region_bytes_max)) {
    throw VerbsError({"too_few_regions",
                      rails_text + " over " + offer.device + " need one memory region of " +
                          std::to_string(slab_bytes) + " bytes, device offers " +
                          std::to_string(offer.regions) + " of at most " +
                          std::to_string(offer.region_bytes_max),
                      "use fewer ranks per device", offer.device, 0});
  }
  if (2 * rails <= offer.queue_pairs) return {true, 2 * rails};
  if (rails <= offer.queue_pairs) return {false, rails};
  throw VerbsError({"too_few_queue_pairs",
                    rails_text + " over " + offer.device + ": needs " + std::to_string(rails) +
                        " queue pairs, device offers " + std::to_string(offer.queue_pairs),
                    "use fewer ranks per device, or a ring of devices instead of one", offer.device,
                    0});
}

}  // namespace standfast::verbs
