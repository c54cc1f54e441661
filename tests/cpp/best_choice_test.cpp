// The Planner's choice against the best of all algorithms, parameters and orders of the hosts, by
// exhaustive search in the simulator, on networks that differ in one thing each.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/choose/planner.h"
#include "plan/choose/priced_schedule.h"
#include "planning.h"

namespace q7x2 {
namespace {

using test::add_slow;
using test::in_racks;
using test::kGigabit;
using test::kKiB;
using test::kMegabit;
using test::kMiB;
using test::switched;

/// The choice may take so many times what the best one takes.
constexpr double kBar = 1.1;
/// Estimates of the cost model are wrong by so much at most, see cost_model_test.cpp: what is
/// estimated to take longer is not the best.
constexpr double kHopeless = 2.2;

struct Network {
  std::string name;
  Fabric fabric;
};

/// Sites that nobody calls racks: only the latencies of pairs tell.
Fabric in_sites(const std::vector<int>& site_of, double rate, double far) {
  Fabric fabric = switched(static_cast<int>(site_of.size()), rate);
  for (size_t a = 0; a < site_of.size(); ++a) {
    for (size_t b = 0; b < site_of.size(); ++b) {
      if (site_of[a] == site_of[b]) continue;
      fabric.pairs.push_back(
          {.from = static_cast<int>(a), .to = static_cast<int>(b), .alpha = far});
    }
  }
  return fabric;
}

Fabric with_links(int hosts, double rate, const std::vector<std::pair<int, int>>& links,
                  double link_rate) {
  Fabric fabric = switched(hosts, rate);
  for (const auto& [a, b] : links) fabric.links.push_back({a, b, link_rate, 50e-6});
  return fabric;
}

Fabric with_nics(const std::vector<double>& rates) {
  Fabric fabric = switched(static_cast<int>(rates.size()), kGigabit);
  for (size_t host = 0; host < rates.size(); ++host) {
    fabric.hosts[host].egress = fabric.hosts[host].ingress = rates[host];
  }
  return fabric;
}

std::vector<Network> networks() {
  std::vector<Network> all;
  all.push_back({"one switch", switched(5, kGigabit)});
  all.push_back({"two racks", in_racks({0, 1, 0, 1}, 200 * kMegabit, 50 * kMegabit)});
  all.push_back({"three racks", in_racks({0, 1, 2, 0, 1}, 200 * kMegabit, 100 * kMegabit)});
  Fabric slow = switched(4, 200 * kMegabit);
  add_slow(slow, 0, 1, 20 * kMegabit);
  all.push_back({"slow pair", slow});
  Fabric slow_pairs = switched(5, 200 * kMegabit);
  add_slow(slow_pairs, 0, 1, 20 * kMegabit);
  add_slow(slow_pairs, 1, 2, 20 * kMegabit);
  add_slow(slow_pairs, 3, 4, 50 * kMegabit);
  all.push_back({"three slow pairs", slow_pairs});
  Fabric slow_ranks = switched(4, 200 * kMegabit, 2);
  add_slow(slow_ranks, 0, 1, 20 * kMegabit);
  all.push_back({"slow pair of hosts of two ranks", slow_ranks});
  all.push_back({"near groups", in_racks({0, 1, 0, 1}, 200 * kMegabit, 0, 5e-3)});
  all.push_back({"near groups by pairs", in_sites({0, 1, 0, 1, 0}, 200 * kMegabit, 10e-3)});
  all.push_back(
      {"private links in a ring",
       with_links(5, 50 * kMegabit, {{0, 2}, {2, 4}, {4, 1}, {1, 3}, {3, 0}}, 200 * kMegabit)});
  all.push_back(
      {"private links of some", with_links(4, 50 * kMegabit, {{0, 2}, {1, 3}}, 200 * kMegabit)});
  all.push_back({"unequal NICs", with_nics({200 * kMegabit, 50 * kMegabit, 200 * kMegabit,
                                            200 * kMegabit, 100 * kMegabit})});
  // A torus of 2 x 3: a ring of three in each row, and a link in each column.
  all.push_back(
      {"torus", with_links(6, 50 * kMegabit,
                           {{0, 1}, {1, 2}, {2, 0}, {3, 4}, {4, 5}, {5, 3}, {0, 3}, {1, 4}, {2, 5}},
                           200 * kMegabit)});
  return all;
}

/// The least time of all that the simulator knows, and what takes it.
class Exhaustive {
 public:
  Exhaustive(const CallShape& shape, const Fabric& fabric, double known)
      : shape_(shape), fabric_(fabric), site_(fabric), best_(known) {}

  double search() {
    std::vector<int> hosts(fabric_.hosts.size());
    std::iota(hosts.begin(), hosts.end(), 0);
    do {
      try_order(ranks_of(hosts));
    } while (std::next_permutation(hosts.begin(), hosts.end()));
    return best_;
  }

  const std::string& winner() const { return winner_; }

 private:
  std::vector<int> ranks_of(const std::vector<int>& hosts) const {
    std::vector<int> ranks;
    for (const int host : hosts) {
      for (int rank = 0; rank < fabric_.world_size(); ++rank) {
        if (fabric_.host_of[static_cast<size_t>(rank)] == host) ranks.push_back(rank);
      }
    }
    return ranks;
  }

  void try_order(const std::vector<int>& order) {
    for (const Generator& generator : generators()) {
      ScheduleRequest request{shape_.collective, fabric_.world_size(), shape_.root, &fabric_};
      request.order = &order;
      if (!generator.applies(request)) continue;
      const std::vector<int> parameters =
          generator.parameters == nullptr ? std::vector{0} : generator.parameters(request);
      for (const int parameter : parameters) {
        request.parameter = parameter;
        auto schedule = std::make_shared<const Schedule>(generator.generate(request));
        if (seen_.insert(schedule->digest()).second) try_schedule(schedule, order);
      }
    }
  }

  void try_schedule(const std::shared_ptr<const Schedule>& schedule,
                    const std::vector<int>& order) {
    PricedSchedule priced(schedule, site_, {}, false);
    constexpr size_t kShortest = 32 * kKiB;
    for (const size_t part : {512 * kKiB, 128 * kKiB, kShortest}) {
      const Cut cut = priced.cut(shape_.bytes, part, 4);
      // The simulator does not know what a flooded queue loses.
      if (part != kShortest && priced.floods(cut, 1)) continue;
      if (priced.estimate(shape_.bytes, cut) > kHopeless * best_) continue;
      const double seconds = priced.simulate(shape_.bytes, cut, 0).seconds;
      if (seconds >= best_) continue;
      best_ = seconds;
      winner_ = schedule->algorithm() + " in order";
      for (const int rank : order) winner_ += " " + std::to_string(rank);
    }
  }

  const CallShape& shape_;
  const Fabric& fabric_;
  const Site site_;
  double best_;
  std::string winner_;
  std::set<uint64_t> seen_;
};

class BestChoice : public testing::TestWithParam<size_t> {};

TEST_P(BestChoice, IsNearTheBestOfAll) {
  const Network network = networks()[GetParam()];
  Planner planner(0, std::make_shared<const Fabric>(network.fabric), "");
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather}) {
    for (const size_t bytes : {kKiB, 256 * kKiB, 4 * kMiB}) {
      if (collective != Collective::kAllReduce && bytes == kKiB) continue;
      const CallShape shape{collective, bytes, is_rooted(collective) ? 0 : -1};
      const Proposal choice = planner.propose(shape, 1).front();
      Exhaustive all(shape, network.fabric, choice.seconds);
      const double best = all.search();
      EXPECT_LE(choice.seconds, kBar * best)
          << network.name << ": " << to_string(collective) << " of " << bytes
          << " bytes: " << choice.algorithm << " takes " << choice.seconds * 1e3 << " ms, "
          << all.winner() << " " << best * 1e3;
    }
  }
}

std::string name_of(const testing::TestParamInfo<size_t>& info) {
  std::string name = networks()[info.param].name;
  std::ranges::replace(name, ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Networks, BestChoice, testing::Range(size_t{0}, networks().size()),
                         name_of);

}  // namespace
}  // namespace q7x2
