#include "core/fabric/verbs/station.h"

#include <tuple>
#include <utility>

#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {
namespace {

using Domains = std::map<std::pair<std::string, int>, std::shared_ptr<Domain>>;

// All are opened, and their budgets computed, before the first queue pair is made.
Domains open_domains(const std::shared_ptr<const Library>& library,
                     const std::map<int, std::vector<Cell>>& cells) {
  std::map<std::pair<std::string, int>, int> rails;
  for (const auto& [peer, row] : cells) {
    for (const Cell& cell : row) ++rails[{cell.device, cell.port}];
  }
  Domains domains;
  for (const auto& [place, count] : rails) {
    domains[place] =
        std::make_shared<Domain>(library, Domain::Use{place.first, place.second, count});
  }
  return domains;
}

}  // namespace

Station::Station(const std::string& library, const std::map<int, std::vector<Cell>>& cells)
    : cells_(cells) {
  const Domains domains = open_domains(load_library(library), cells);
  for (const auto& [peer, row] : cells) {
    for (const Cell& cell : row) {
      rails_[peer].push_back(std::make_unique<Rail>(domains.at({cell.device, cell.port})));
    }
  }
}

std::vector<RailAddress> Station::addresses(int peer, const std::vector<std::string>& likely) {
  std::vector<RailAddress> found;
  const std::vector<Cell>& cells = cells_.at(peer);
  auto& rails = rails_.at(peer);
  for (std::size_t i = 0; i < rails.size(); ++i) {
    found.push_back(rails[i]->address(cells[i].address, likely));
  }
  return found;
}

void Station::connect(int peer, const std::vector<RailAddress>& theirs,
                      const std::string& peer_text, Link::Ends ends) {
  auto& rails = rails_.at(peer);
  std::string text;
  for (std::size_t i = 0; i < rails.size(); ++i) {
    const std::string why = mismatch(rails[i]->last_address(), theirs.at(i));
    if (!why.empty()) {
      throw VerbsError({"ends_differ",
                        rails[i]->device() + " and " + theirs[i].device + " of " + peer_text +
                            " can't be joined: " + why,
                        "see `standfast devices` on both hosts", rails[i]->device(), 0});
    }
    rails[i]->connect(theirs[i], peer_text, ends.key & 0xffffff);
    text += (text.empty() ? "rdma " : ", ") + rails[i]->text();
  }
  texts_[peer] = text;
  links_[peer] = std::make_unique<Link>(std::move(rails), ends);
}

void Station::renew(int peer) {
  auto& rails = rails_.at(peer);
  if (const auto made = links_.extract(peer)) rails = made.mapped()->dissolve();
  for (const auto& rail : rails) rail->renew();
}

bool Station::is_greeted(int peer) {
  Link& link = link_of(peer);
  const bool greeted = link.is_greeted();
  if (link.is_broken()) throw VerbsError({"link_broken", link.trouble(), "", "", 0});
  return greeted;
}

std::unique_ptr<Link> Station::release(int peer) { return std::move(links_.at(peer)); }

}  // namespace standfast::verbs
