#include "core/jaccl/station.h"

#include <algorithm>
#include <map>
#include <utility>

namespace standfast::jaccl {
namespace {

using Place = std::pair<std::string, int>;

Place place_of(const Berth& berth) { return {berth.device, berth.port}; }

}  // namespace

// All devices are opened, and their offers looked at, before the first queue pair is made.
Station::Station(const std::string& library, std::vector<Berth> berths)
    : berths_(std::move(berths)) {
  std::map<Place, int> lanes;
  for (const Berth& berth : berths_) ++lanes[place_of(berth)];
  const auto loaded = verbs::load_library(library);
  std::map<Place, std::shared_ptr<Port>> ports;
  for (const auto& [place, count] : lanes) {
    ports[place] = std::make_shared<Port>(loaded, place.first, place.second, count);
  }
  for (const Berth& berth : berths_) {
    lanes_.push_back(std::make_unique<Lane>(ports.at(place_of(berth)), berth.peer));
  }
}

std::vector<Record> Station::records() {
  std::vector<Record> found;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    found.push_back(lanes_[i]->record(berths_[i].address));
  }
  return found;
}

void Station::connect(int berth, const Record& theirs, const std::string& peer_text) {
  lanes_.at(static_cast<std::size_t>(berth))->connect(theirs, peer_text);
}

std::vector<std::unique_ptr<Lane>> Station::release(const std::vector<int>& stock) {
  for (const auto& lane : lanes_) {
    if (std::find(stock.begin(), stock.end(), lane->peer()) == stock.end()) lane->expect_stamps();
  }
  return std::move(lanes_);
}

}  // namespace standfast::jaccl
