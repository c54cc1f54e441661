#include "executor/probe/probe.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <type_traits>

#include "base/version.h"
#include "executor/probe/courier.h"
#include "executor/probe/host_description.h"
#include "executor/probe/participant.h"
#include "executor/probe/relay.h"
#include "fabric/doubt.h"
#include "fabric/infer.h"
#include "fabric/json.h"
#include "transport/ucx/ucx.h"

namespace q7x2 {
namespace {

using Meeting = std::pair<int, int>;

constexpr int kAllRounds = 16;
// All streams of a probe together, in seconds, where the links are slow.
constexpr double kStreamBudget = 1.3;
constexpr double kLongestStream = 0.3;
constexpr double kShortestStream = 0.12;
// Pairs that are measured again, alone.
constexpr size_t kMostSuspects = 8;
// How often a figure that scatters is measured.
constexpr int kAttempts = 3;

constexpr uint32_t kConductTag = 0x7000;
constexpr uint32_t kReportTag = 0x7001;

enum class Act : int32_t { kPing, kStream, kEnd };

// On the wire between ranks of one build: the survey has refused others. See Announcement.
struct Order {
  Act act = Act::kEnd;
  int32_t peer = -1;
  int32_t first = 0;
  int32_t wire = 0;
  double seconds = 0;  // of a stream
};

static_assert(std::is_trivially_copyable_v<Order>);

/// All leaders of hosts: describes this one. The first leader gets the descriptions, by host.
std::vector<std::string> gather_descriptions(const std::shared_ptr<Group>& group,
                                             const Placement& placement,
                                             const ProbeOptions& options) {
  const std::vector<int> leaders = placement.leaders();
  const auto host = static_cast<size_t>(placement.host_of[static_cast<size_t>(group->rank())]);
  GroupCourier courier(group, kMaxFabricBytes, Clock::now() + options.timeout);
  return gather(courier, leaders, static_cast<int>(host), to_json(describe_host()));
}

/// Brings the result, and with it the end: whoever gets it waits for an order until then.
class ResultCourier final : public Courier {
 public:
  ResultCourier(const std::shared_ptr<Group>& group, const ProbeOptions& options)
      : me_(group, options), courier_(group, kMaxFabricBytes, Clock::now() + options.timeout) {}

  void send(int rank, const std::string& text) override {
    me_.send_value(rank, kConductTag, Order{.act = Act::kEnd});
    courier_.send(rank, text);
  }
  std::string receive(int rank) override { return courier_.receive(rank); }

 private:
  Participant me_;
  GroupCourier courier_;
};

int position_in(const std::vector<int>& order, int rank) {
  return static_cast<int>(std::ranges::find(order, rank) - order.begin());
}

class Conductor {
 public:
  Conductor(const std::shared_ptr<Group>& group, const std::vector<Fabric::Binding>& bindings,
            const ProbeOptions& options)
      : me_(group, options),
        placement_(placement_of(*group)),
        bindings_(bindings),
        options_(options) {
    measured_.host_of = placement_.host_of;
    ranks_of_.resize(placement_.names.size());
    for (size_t rank = 0; rank < placement_.host_of.size(); ++rank) {
      ranks_of_[static_cast<size_t>(placement_.host_of[rank])].push_back(static_cast<int>(rank));
    }
  }

  Fabric run() {
    const auto start = Clock::now();
    describe_hosts(gather_descriptions(me_.group_pointer(), placement_, options_));
    ping_inside_hosts();
    if (hosts() > 1) measure_network();
    if (options_.all_pairs) measure_pairs();
    if (!options_.all_pairs) measure_suspects();
    Fabric fabric = infer(measured_);
    fabric.bindings = bindings_;
    fabric.made.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return fabric;
  }

 private:
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  int leader(int host) const { return ranks_of_[static_cast<size_t>(host)].front(); }

  void describe_hosts(const std::vector<std::string>& texts) {
    for (size_t host = 0; host < texts.size(); ++host) {
      HostDescription description = description_from_json(texts[host]);
      measured_.hosts.push_back({.name = placement_.names[host],
                                 .key = placement_.keys[host],
                                 .cores = description.cores,
                                 .hardware = std::move(description.hardware),
                                 .rates = std::move(description.rates)});
    }
  }

  /// The disjoint `meetings` of ranks, all at once; each end's report.
  std::map<int, Report> meet(Act act, const std::vector<Meeting>& meetings, Wire wire,
                             double seconds) {
    const Meeting* own = nullptr;
    std::vector<int> others;
    for (const Meeting& meeting : meetings) {
      for (const auto& [rank, peer, first] :
           {std::tuple(meeting.first, meeting.second, 1), {meeting.second, meeting.first, 0}}) {
        if (rank == 0) {
          own = &meeting;
          continue;
        }
        me_.send_value(rank, kConductTag,
                       Order{.act = act,
                             .peer = peer,
                             .first = first,
                             .wire = static_cast<int32_t>(wire),
                             .seconds = seconds});
        others.push_back(rank);
      }
    }
    std::map<int, Report> reports;
    if (own != nullptr) {
      const bool first = own->first == 0;
      const int peer = first ? own->second : own->first;
      reports[0] =
          act == Act::kPing ? me_.ping(peer, wire, first) : me_.stream(peer, wire, seconds);
    }
    for (const int rank : others) reports[rank] = me_.receive_value<Report>(rank, kReportTag).first;
    return reports;
  }

  /// The meetings that came about. What scatters is measured again: other work on the machine only
  /// makes a message slower, so the steadier figures count.
  std::vector<Meeting> ping(const std::vector<Meeting>& meetings, Wire wire = Wire::kShared) {
    std::map<Meeting, Measurements::Ping> found;
    std::vector<Meeting> left = meetings;
    for (int attempt = 0; attempt < kAttempts && !left.empty(); ++attempt) {
      const auto reports = meet(Act::kPing, left, wire, 0);
      std::erase_if(left, [&](const Meeting& meeting) {
        const auto& [a, b] = meeting;
        const auto& [round_trip, spread, overhead, unused] = reports.at(a).figures;
        if (round_trip <= 0) return true;
        const Measurements::Ping now{placement_.host_of[static_cast<size_t>(a)],
                                     placement_.host_of[static_cast<size_t>(b)],
                                     round_trip,
                                     spread,
                                     overhead,
                                     static_cast<int>(wire),
                                     crosses_numa(a, b)};
        const auto best = found.try_emplace(meeting, now).first;
        if (now.spread < best->second.spread) best->second = now;
        return !is_doubtful(spread);
      });
    }
    std::vector<Meeting> done;
    for (const Meeting& meeting : meetings) {
      const auto known = found.find(meeting);
      if (known == found.end()) continue;
      done.push_back(meeting);
      measured_.pings.push_back(known->second);
    }
    return done;
  }

  /// As above. All meetings are repeated, because their streams compete for cables.
  std::vector<Measurements::Flow> stream(const std::vector<Meeting>& meetings, double seconds,
                                         Wire wire = Wire::kShared) {
    std::vector<Measurements::Flow> best;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::vector<Measurements::Flow> now = stream_once(meetings, seconds, wire);
      if (best.empty()) best = now;
      for (size_t i = 0; i < now.size(); ++i) {
        if (now[i].spread < best[i].spread) best[i] = now[i];
      }
      const bool is_steady = std::ranges::none_of(
          best, [](const Measurements::Flow& flow) { return is_doubtful(flow.spread); });
      if (is_steady) break;
    }
    return best;
  }

  std::vector<Measurements::Flow> stream_once(const std::vector<Meeting>& meetings, double seconds,
                                              Wire wire) {
    const auto reports = meet(Act::kStream, meetings, wire, seconds);
    std::vector<Measurements::Flow> flows;
    for (const auto& [a, b] : meetings) {
      for (const auto& [from, to] : {Meeting(a, b), Meeting(b, a)}) {
        const auto& [received, spread, unused, burst] = reports.at(to).figures;
        const double acknowledged = reports.at(from).figures[2];
        flows.push_back({placement_.host_of[static_cast<size_t>(from)],
                         placement_.host_of[static_cast<size_t>(to)],
                         confirmed_rate(received, acknowledged), spread, static_cast<int>(wire),
                         burst});
      }
    }
    return flows;
  }

  bool crosses_numa(int a, int b) const {
    const int node_a = bindings_[static_cast<size_t>(a)].numa_node;
    const int node_b = bindings_[static_cast<size_t>(b)].numa_node;
    return placement_.host_of[static_cast<size_t>(a)] ==
               placement_.host_of[static_cast<size_t>(b)] &&
           node_a >= 0 && node_b >= 0 && node_a != node_b;
  }

  /// The ranks of a host that its leader pings: the next and the last, near and far in most
  /// placements, and one in the leader's NUMA node and one in another.
  std::vector<int> ping_partners(const std::vector<int>& ranks) const {
    std::vector<int> partners;
    const auto add = [&partners](int rank) {
      if (std::ranges::find(partners, rank) == partners.end()) partners.push_back(rank);
    };
    if (ranks.size() < 2) return partners;
    add(ranks[1]);
    add(ranks.back());
    for (const bool crosses : {false, true}) {
      const auto found = std::find_if(ranks.begin() + 1, ranks.end(), [&](int rank) {
        return crosses_numa(ranks[0], rank) == crosses;
      });
      if (found != ranks.end()) add(*found);
    }
    return partners;
  }

  void ping_inside_hosts() {
    std::vector<std::vector<Meeting>> rounds;
    for (const std::vector<int>& ranks : ranks_of_) {
      const std::vector<int> partners = ping_partners(ranks);
      rounds.resize(std::max(rounds.size(), partners.size()));
      for (size_t i = 0; i < partners.size(); ++i) rounds[i].emplace_back(ranks[0], partners[i]);
    }
    for (const std::vector<Meeting>& meetings : rounds) ping(meetings);
  }

  std::vector<Meeting> leaders(const std::vector<Meeting>& of_hosts) const {
    std::vector<Meeting> meetings;
    for (const auto& [a, b] : of_hosts) meetings.emplace_back(leader(a), leader(b));
    return meetings;
  }

  void measure_network() {
    const auto rounds = tournament(hosts(), kAllRounds);
    const double seconds = std::clamp(kStreamBudget / static_cast<double>(rounds.size()),
                                      kShortestStream, kLongestStream);
    for (const auto& round : rounds) {
      const std::vector<Meeting> meetings = leaders(round);
      ping(meetings);
      measured_.rounds.push_back(stream(meetings, seconds));
      measure_private_links(meetings, seconds);
    }
  }

  void measure_private_links(std::vector<Meeting> meetings, double seconds) {
    std::erase_if(meetings, [this](const Meeting& meeting) {
      return !me_.group().membership().private_network(meeting.first, meeting.second);
    });
    if (meetings.empty()) return;
    const auto flows = stream(ping(meetings, Wire::kPrivate), seconds, Wire::kPrivate);
    // A direction that carried nothing makes the link useless.
    for (const Measurements::Flow& flow : flows) {
      if (flow.rate > 0) measured_.rounds.back().push_back(flow);
    }
  }

  void measure_alone(const std::vector<Meeting>& meeting) {
    const auto flows = stream(meeting, kLongestStream);
    measured_.solo.insert(measured_.solo.end(), flows.begin(), flows.end());
  }

  /// Pairs that were slower than their hosts and racks: alone each shows whether it is so itself.
  void measure_suspects() {
    for (const Meeting& pair : slow_pairs(measured_, kMostSuspects)) measure_alone(leaders({pair}));
  }

  void measure_pairs() {
    measured_.pings.clear();
    ping_inside_hosts();
    for (int a = 0; a < hosts(); ++a) {
      for (int b = a + 1; b < hosts(); ++b) {
        const std::vector<Meeting> meeting = leaders({{a, b}});
        ping(meeting);
        measure_alone(meeting);
      }
    }
  }

  Participant me_;
  const Placement placement_;
  const std::vector<Fabric::Binding> bindings_;  // by rank
  const ProbeOptions options_;
  std::vector<std::vector<int>> ranks_of_;  // by host
  Measurements measured_;
};

Wire wire_of(const Order& order, const Group& group) {
  if (order.wire == static_cast<int32_t>(Wire::kShared)) return Wire::kShared;
  if (order.wire != static_cast<int32_t>(Wire::kPrivate) ||
      !group.membership().private_network(group.rank(), order.peer)) {
    throw Error(ErrorCode::kMismatch, "the probe wants a talk over a link that is not there", 0);
  }
  return Wire::kPrivate;
}

std::string driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  return file >> version ? version : "";
}

std::string kernel_release() {
  utsname names{};
  return ::uname(&names) == 0 ? names.release : "";
}

}  // namespace

Fabric conduct_probe(const std::shared_ptr<Group>& group,
                     const std::vector<Fabric::Binding>& bindings, const ProbeOptions& options) {
  Fabric fabric = Conductor(group, bindings, options).run();
  fabric.made.source = "probe";
  fabric.made.time = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  fabric.made.q7x2 = kVersion;
  fabric.made.ucx = ucx_version();
  fabric.made.driver = driver_version();
  fabric.made.kernel = kernel_release();
  return fabric;
}

void announce(const std::shared_ptr<Group>& group, const std::string& result,
              const ProbeOptions& options) {
  ResultCourier courier(group, options);
  spread(courier, placement_of(*group).order(), 0, result);
}

std::string follow_probe(const std::shared_ptr<Group>& group, const ProbeOptions& options) {
  Participant me(group, options);
  const Placement placement = placement_of(*group);
  const std::vector<int> order_of_ranks = placement.order();
  const int position = position_in(order_of_ranks, group->rank());
  const std::vector<int> leaders = placement.leaders();
  if (std::ranges::find(leaders, group->rank()) != leaders.end()) {
    gather_descriptions(group, placement, options);
  }
  while (true) {
    const auto [order, from] = me.receive_value<Order>(MessageTask::kAnySource, kConductTag);
    const int expected = order.act == Act::kEnd ? spread_source(order_of_ranks, position) : 0;
    if (from != expected) {
      throw Error(ErrorCode::kMismatch,
                  "an order of the probe comes from rank " + std::to_string(from), from);
    }
    Report report;
    switch (order.act) {
      case Act::kPing:
      case Act::kStream:
        if (order.peer < 0 || order.peer >= group->world_size() || order.peer == group->rank()) {
          throw Error(ErrorCode::kMismatch,
                      "the probe wants a talk with rank " + std::to_string(order.peer), 0);
        }
        report = order.act == Act::kPing
                     ? me.ping(order.peer, wire_of(order, *group), order.first != 0)
                     : me.stream(order.peer, wire_of(order, *group), order.seconds);
        break;
      case Act::kEnd:
        ResultCourier courier(group, options);
        return spread(courier, order_of_ranks, position, "");
    }
    me.send_value(0, kReportTag, report);
  }
}

}  // namespace q7x2
