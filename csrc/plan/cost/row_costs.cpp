#include "plan/cost/row_costs.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace q7x2 {
namespace {

/// The order, the grant, and the vote, whose slowest way is a tree: see servers/server_group.h.
constexpr double kMessagesOfAnAttempt = 6;

/// Members that a host, or all hosts of a rack, has.
struct Share {
  double ranks = 0;
  double owners = 0;
};

/// What leaves it and what comes in, in bytes.
struct Flow {
  double out = 0;
  double in = 0;
};

Flow flow_of(const Share& share, const Share& all, const RowVolume& volume) {
  const double given = volume.given / all.ranks;     // by a rank
  const double summed = volume.summed / all.owners;  // by an owner
  const double far_ranks = all.ranks - share.ranks;
  const double far_owners = (all.owners - share.owners) / all.owners;
  return {.out = share.ranks * given * far_owners + share.owners * summed * far_ranks,
          .in = share.ranks * volume.summed * far_owners +
                share.owners / all.owners * given * far_ranks};
}

double seconds(double bytes, double rate) {
  return rate > 0 ? bytes / rate : 0;
}

double predicted(const Fabric& members, int ranks, bool ranks_own, const RowVolume& volume) {
  std::vector<Share> hosts(members.hosts.size());
  std::vector<Share> racks(members.racks.size());
  Share all;
  for (int member = 0; member < members.world_size(); ++member) {
    const bool is_rank = member < ranks;
    const auto host = static_cast<size_t>(members.host_of[static_cast<size_t>(member)]);
    for (Share* const share :
         {&hosts[host], &racks[static_cast<size_t>(members.rack_of(member))], &all}) {
      share->ranks += is_rank ? 1 : 0;
      share->owners += is_rank == ranks_own ? 1 : 0;
    }
  }
  double slowest = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const Flow flow = flow_of(hosts[i], all, volume);
    const double folded = volume.given * hosts[i].owners / all.owners;
    const double cores =
        std::clamp(hosts[i].owners, 1.0, static_cast<double>(std::max(members.hosts[i].cores, 1)));
    slowest = std::max({slowest, seconds(flow.out, members.hosts[i].egress),
                        seconds(flow.in, members.hosts[i].ingress),
                        seconds(folded / cores, members.host_reduce_rate(static_cast<int>(i)))});
  }
  for (size_t i = 0; i < racks.size(); ++i) {
    const Flow flow = flow_of(racks[i], all, volume);
    slowest = std::max(
        {slowest, seconds(flow.out, members.racks[i].up), seconds(flow.in, members.racks[i].down)});
  }
  return slowest;
}

}  // namespace

double seconds_by_ranks(const Fabric& fabric, const RowVolume& volume) {
  return predicted(fabric.with_servers(), fabric.world_size(), /*ranks_own=*/true, volume);
}

double seconds_by_servers(const Fabric& fabric, const RowVolume& volume) {
  if (fabric.servers.empty()) return std::numeric_limits<double>::infinity();
  return predicted(fabric.with_servers(), fabric.world_size(), /*ranks_own=*/false, volume) +
         kMessagesOfAnAttempt * (fabric.network.alpha + 2 * fabric.network.overhead);
}

}  // namespace q7x2
