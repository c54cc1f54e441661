#include "plan/cost/symmetry.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace q7x2 {
namespace {

/// What a turn makes of hosts, of machines, or of racks, by what it makes of their ranks.
class Orbits {
 public:
  explicit Orbits(size_t count) : image_(count, kUnknown) {}

  /// False where the turn would tear `from` apart.
  bool add(size_t from, size_t to) {
    if (image_[from] == kUnknown) image_[from] = to;
    return image_[from] == to;
  }

  /// By index: the first one of its orbit. Empty where some have no image, or where an orbit has
  /// not `length` different ones.
  std::vector<size_t> firsts(size_t length) const {
    std::vector<size_t> first(image_.size(), kUnknown);
    for (size_t i = 0; i < image_.size(); ++i) {
      if (first[i] != kUnknown) continue;
      size_t at = i;
      for (size_t step = 0; step < length; ++step) {
        if (at == kUnknown || first[at] != kUnknown) return {};
        first[at] = i;
        at = image_[at];
      }
      if (at != i) return {};
    }
    return first;
  }

 private:
  static constexpr size_t kUnknown = ~size_t{0};

  std::vector<size_t> image_;
};

struct Images {
  Orbits hosts;
  Orbits racks;
  Orbits machines;
};

/// The images under a turn of the `ranks` ranks by `turn`. Nothing if the turn tears a host, a rack
/// or a machine apart, or takes a rank to one of other rates.
std::optional<Images> images_of(const Site& site, uint32_t ranks, uint32_t turn) {
  const Fabric& fabric = site.members;
  Images images{Orbits(fabric.hosts.size()), Orbits(fabric.racks.size()),
                Orbits(site.machines.all().size())};
  std::map<size_t, uint32_t> block_of_machine;
  std::map<int, uint32_t> block_of_rack;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto from = static_cast<int>(rank);
    const auto to = static_cast<int>((rank + turn) % ranks);
    const auto host_of = [&](int of) {
      return static_cast<size_t>(fabric.host_of[static_cast<size_t>(of)]);
    };
    if (!images.hosts.add(host_of(from), host_of(to)) ||
        !images.racks.add(static_cast<size_t>(fabric.rack_of(from)),
                          static_cast<size_t>(fabric.rack_of(to))) ||
        !images.machines.add(site.machines.of(from), site.machines.of(to)) ||
        // What shares a cable or a core stands together, so that a turn keeps its order.
        block_of_machine.try_emplace(site.machines.of(from), rank / turn).first->second !=
            rank / turn ||
        (fabric.racks.size() > 1 &&
         block_of_rack.try_emplace(fabric.rack_of(from), rank / turn).first->second !=
             rank / turn) ||
        fabric.copy_rate_of(from) != fabric.copy_rate_of(to) ||
        fabric.reduce_rate_of(from) != fabric.reduce_rate_of(to)) {
      return std::nullopt;
    }
  }
  return images;
}

}  // namespace

std::optional<Symmetry> Symmetry::find(const Site& site, Schedule::Turn turn) {
  const Fabric& fabric = site.fabric;
  const int ranks = fabric.world_size();
  // Messages that take no time would reach another orbit while this one is still at its events.
  const bool is_plain = fabric.network.alpha > 0 && fabric.servers.empty() &&
                        fabric.pairs.empty() && fabric.links.empty() && fabric.bindings.empty();
  if (!is_plain || turn.ranks <= 0) return std::nullopt;
  for (int multiple = turn.ranks; multiple <= std::max(ranks / 2, turn.ranks);
       multiple += turn.ranks) {
    if (ranks % multiple != 0) continue;
    Symmetry symmetry({multiple, turn.messages_of_parts, turn.flips}, ranks);
    if (symmetry.fits(site)) return symmetry;
  }
  return std::nullopt;
}

// Shifts and flips both permute whole blocks of `turn_` ranks. Machines, and racks if there are
// several, lie within a block. So if a shift by a block leaves the Fabric as it is, all blocks are
// alike, and flips leave it as it is, too.
bool Symmetry::fits(const Site& site) {
  const std::optional<Images> images = images_of(site, all_, turn_);
  if (!images) return false;
  const size_t length = all_ / turn_;
  const std::vector<size_t> host = images->hosts.firsts(length);
  std::vector<size_t> rack = images->racks.firsts(length);
  machines_ = images->machines.firsts(length);
  if (site.members.racks.size() == 1) rack = {0};
  if (host.empty() || rack.empty() || machines_.empty()) return false;
  const std::vector<Machine>& machines = site.machines.all();
  for (size_t i = 0; i < machines.size(); ++i) {
    const Machine& first = machines[machines_[i]];
    if (machines[i].cores != first.cores || machines[i].ranks != first.ranks) return false;
  }
  return share_resources(site, host, rack);
}

bool Symmetry::share_resources(const Site& site, const std::vector<size_t>& host,
                               const std::vector<size_t>& rack) {
  resources_.resize(site.routes.resources().size());
  std::iota(resources_.begin(), resources_.end(), 0);
  const auto stands_for = [&](int first, int other) {
    resources_[static_cast<size_t>(other)] = static_cast<uint32_t>(first);
  };
  for (size_t i = 0; i < host.size(); ++i) {
    const Routes::Ports& first = site.routes.ports(static_cast<int>(host[i]));
    const Routes::Ports& ports = site.routes.ports(static_cast<int>(i));
    stands_for(first.egress, ports.egress);
    stands_for(first.ingress, ports.ingress);
    stands_for(first.memory, ports.memory);
  }
  for (size_t i = 0; i < rack.size(); ++i) {
    const Routes::Cable& first = site.routes.cable(static_cast<int>(rack[i]));
    const Routes::Cable& cable = site.routes.cable(static_cast<int>(i));
    if (cable.alpha != first.alpha) return false;
    stands_for(first.up, cable.up);
    stands_for(first.down, cable.down);
  }
  for (size_t i = 0; i < resources_.size(); ++i) {
    const auto rate_of = [&](size_t at) { return site.routes.resources()[at].rate; };
    if (rate_of(i) != rate_of(resources_[i])) return false;
  }
  return true;
}

}  // namespace q7x2
