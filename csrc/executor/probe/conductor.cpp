#include "executor/probe/conductor.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "executor/probe/far_pairs.h"
#include "executor/probe/participant.h"
#include "executor/probe/placement.h"
#include "executor/probe/tournament.h"
#include "fabric/doubt.h"
#include "fabric/infer.h"
#include "fabric/json.h"
#include "fabric/linkage.h"

namespace q7x2 {
namespace {

using Meeting = std::pair<int, int>;

// All streams of a probe together, in seconds, where the links are slow.
constexpr double kStreamBudget = 1.3;
constexpr double kLongestStream = 0.3;
constexpr double kShortestStream = 0.12;
// Pairs that are measured again, alone.
constexpr size_t kMostSuspects = 8;
// How often a figure that scatters is measured, and a stream between far hosts, which takes a dozen
// round trips.
constexpr int kAttempts = 3;
constexpr int kFarAttempts = 2;

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

  Fabric run(const FirstFindings& findings, TimePoint start) {
    describe_hosts(findings.descriptions);
    for (const Latency& each : findings.latencies) {
      if (each.round_trip > kLongRoundTrip) add(each.ping());
    }
    ping_inside_hosts();
    if (hosts() > 1) measure_network();
    options_.all_pairs ? measure_pairs() : measure_suspects();
    Fabric fabric = infer(measured_);
    fabric.made.source = "probe";
    fabric.bindings = bindings_;
    fabric.made.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return fabric;
  }

 private:
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  int leader(int host) const { return ranks_of_[static_cast<size_t>(host)].front(); }

  void add(const Measurements::Ping& ping) {
    measured_.pings.push_back(ping);
    if (ping.wire == Measurements::kShared) {
      round_trips_[unordered(ping.a, ping.b)] = ping.round_trip;
    }
  }

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

  /// The disjoint `meetings` of ranks, all at once, each with its order; each end's report.
  std::map<int, Report> meet(const std::vector<std::pair<Meeting, Order>>& meetings) {
    const Meeting* own = nullptr;
    Order own_order;
    std::vector<int> others;
    for (const auto& [meeting, common] : meetings) {
      for (const auto& [rank, peer, first] :
           {std::tuple(meeting.first, meeting.second, 1), {meeting.second, meeting.first, 0}}) {
        Order order = common;
        order.peer = peer;
        order.first = first;
        if (rank == 0) {
          own = &meeting;
          own_order = order;
          continue;
        }
        me_.send_value(rank, Order::kTag, order);
        others.push_back(rank);
      }
    }
    std::map<int, Report> reports;
    if (own != nullptr) reports[0] = me_.obey(own_order, static_cast<Wire>(own_order.wire));
    for (const int rank : others) {
      reports[rank] = me_.receive_value<Report>(rank, Order::kReportTag).first;
    }
    return reports;
  }

  std::map<int, Report> meet(const std::vector<Meeting>& meetings, const Order& order) {
    std::vector<std::pair<Meeting, Order>> all;
    for (const Meeting& meeting : meetings) all.emplace_back(meeting, order);
    return meet(all);
  }

  int host_of(int rank) const { return placement_.host_of[static_cast<size_t>(rank)]; }
  /// Round trip between the hosts of two ranks, over the network that all share; 0 if unknown.
  double round_trip(const Meeting& meeting) const {
    const auto found =
        round_trips_.find(unordered(host_of(meeting.first), host_of(meeting.second)));
    return found == round_trips_.end() ? 0 : found->second;
  }

  /// The meetings that came about. What scatters is measured again: other work on the machine only
  /// makes a message slower, so the steadier figures count.
  std::vector<Meeting> ping(const std::vector<Meeting>& meetings, Wire wire = Wire::kShared) {
    std::vector<Meeting> left = meetings;
    std::map<Meeting, Measurements::Ping> found;
    for (int attempt = 0; attempt < kAttempts && !left.empty(); ++attempt) {
      const auto reports =
          meet(left, {.act = Order::Act::kPing, .wire = static_cast<int32_t>(wire)});
      std::erase_if(left, [&](const Meeting& meeting) {
        const auto& [a, b] = meeting;
        const auto& [round_trip, spread, overhead, unused] = reports.at(a).figures;
        if (round_trip <= 0) return true;
        const Measurements::Ping now{.a = host_of(a),
                                     .b = host_of(b),
                                     .round_trip = round_trip,
                                     .spread = spread,
                                     .overhead = overhead,
                                     .wire = static_cast<int>(wire),
                                     .crosses_numa = crosses_numa(a, b)};
        const auto best = found.try_emplace(meeting, now).first;
        if (now.spread < best->second.spread) best->second = now;
        return !is_doubtful(spread);
      });
    }
    std::vector<Meeting> done;
    for (const auto& [meeting, figures] : found) {
      done.push_back(meeting);
      add(figures);
    }
    return done;
  }

  /// As above. All meetings are repeated, because their streams compete for cables.
  std::vector<Measurements::Flow> stream(const std::vector<Meeting>& meetings, double seconds,
                                         Wire wire = Wire::kShared) {
    const bool has_far = std::ranges::any_of(
        meetings, [&](const Meeting& meeting) { return is_far(round_trip(meeting)); });
    const int attempts = meetings.empty() ? 0 : has_far ? kFarAttempts : kAttempts;
    std::vector<Measurements::Flow> best;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const std::vector<Measurements::Flow> now = stream_once(meetings, seconds, wire);
      if (best.empty()) best = now;
      for (size_t i = 0; i < now.size(); ++i) {
        if (is_better(now[i], best[i])) best[i] = now[i];
      }
      const bool is_steady = std::ranges::none_of(
          best, [](const Measurements::Flow& flow) { return is_doubtful(flow.spread); });
      if (is_steady && !(has_far && are_lopsided(best))) break;
    }
    return best;
  }

  /// Two flows for each meeting, there and back. Far hosts stream while near ones do, over UCX
  /// first there and then back.
  std::vector<Measurements::Flow> stream_once(const std::vector<Meeting>& meetings, double seconds,
                                              Wire wire) {
    std::vector<Meeting> far;
    std::vector<std::pair<Meeting, Order>> orders;
    for (const Meeting& meeting : meetings) {
      if (wire == Wire::kShared && is_far(round_trip(meeting))) {
        far.push_back(meeting);
      } else {
        orders.emplace_back(meeting, stream_order(meeting, seconds, wire));
      }
    }
    for (const auto& each : far_orders(far)) orders.push_back(each);
    auto reports = meet(orders);
    std::vector<Measurements::Flow> flows;
    for (const auto& [a, b] : meetings) {
      for (const auto& [from, to] : {Meeting(a, b), Meeting(b, a)}) {
        flows.push_back(flow_of(from, to, reports, wire));
      }
    }
    if (far.empty()) return flows;
    std::vector<FarStream> measured;
    send_trains(far, reports, measured);
    for (auto& [from, to] : far) std::swap(from, to);
    orders = far_orders(far);
    std::erase_if(orders, [this](const auto& each) { return streams_both_ways(each.first); });
    for (const auto& [rank, report] : meet(orders)) reports[rank] = report;
    send_trains(far, reports, measured);
    const auto found = far_flows(measured, sites_of(ranks_of_.size(), measured_.pings));
    for (size_t i = 0; i < found.size(); ++i) {
      const auto same = std::ranges::find_if(flows, [&](const Measurements::Flow& flow) {
        return flow.from == measured[i].from && flow.to == measured[i].to;
      });
      same->rate = found[i].rate;
      same->window = found[i].window;
      same->spread = found[i].spread;
    }
    return flows;
  }

  /// For Order::wire: what the messages of the group's collectives will use.
  int32_t carrier(const Meeting& meeting, Wire wire) {
    const Membership& members = me_.group().membership();
    const bool streams =
        wire == Wire::kShared && may_stream(members.peer_info(meeting.first),
                                            members.peer_info(meeting.second), round_trip(meeting));
    return static_cast<int32_t>(streams ? Wire::kStream : wire);
  }

  bool streams_both_ways(const Meeting& far) {
    return carrier(far, Wire::kShared) == static_cast<int32_t>(Wire::kStream);
  }

  Order stream_order(const Meeting& meeting, double seconds, Wire wire) {
    return {.act = Order::Act::kStream, .wire = carrier(meeting, wire), .seconds = seconds};
  }

  /// For streams between far hosts. Those that share a line, if only there and back, all take the
  /// same time, so that they have it together until the end.
  std::vector<std::pair<Meeting, Order>> far_orders(const std::vector<Meeting>& far) {
    if (far.empty()) return {};
    const std::vector<int> sites = sites_of(ranks_of_.size(), measured_.pings);
    const auto line = [&](const Meeting& meeting) {
      const auto site = [&](int rank) { return sites[static_cast<size_t>(host_of(rank))]; };
      return unordered(site(meeting.first), site(meeting.second));
    };
    std::map<HostPair, int> streams;
    for (const Meeting& meeting : far) ++streams[line(meeting)];
    std::vector<std::pair<Meeting, Order>> orders;
    for (const Meeting& meeting : far) {
      const double round_trip = this->round_trip(meeting);
      const bool ends_when_full = streams[line(meeting)] == 1 && !streams_both_ways(meeting);
      Order order = stream_order(meeting, ends_when_full ? 0 : seconds_of_far_stream(round_trip),
                                 Wire::kShared);
      order.round_trip = round_trip;
      orders.emplace_back(meeting, order);
    }
    return orders;
  }

  Measurements::Flow flow_of(int from, int to, const std::map<int, Report>& reports,
                             Wire wire) const {
    const auto& [received, spread, unused, burst] = reports.at(to).figures;
    const double acknowledged = reports.at(from).figures[2];
    return {.from = host_of(from),
            .to = host_of(to),
            .rate = confirmed_rate(received, acknowledged),
            .spread = spread,
            .wire = static_cast<int>(wire),
            .burst = burst};
  }

  /// From the first of two far hosts to the second: what a path takes, while its one connection is
  /// warm. Many connections take what they are given. `streams`: what their streams reported.
  void send_trains(const std::vector<Meeting>& far, const std::map<int, Report>& streams,
                   std::vector<FarStream>& measured) {
    std::vector<std::pair<Meeting, Order>> orders;
    const size_t first = measured.size();
    for (const Meeting& meeting : far) {
      const auto flow = flow_of(meeting.first, meeting.second, streams, Wire::kShared);
      const double round_trip = this->round_trip(meeting);
      const uint64_t bytes = streams_both_ways(meeting) ? 0 : train_bytes(flow.rate, round_trip);
      if (bytes > 0) orders.emplace_back(meeting, Order{.act = Order::Act::kTrain, .bytes = bytes});
      measured.push_back({.from = flow.from,
                          .to = flow.to,
                          .warm = flow.rate,
                          .round_trip = round_trip,
                          .bytes = bytes,
                          .spread = flow.spread});
    }
    const auto reports = meet(orders);
    for (size_t i = 0; i < far.size(); ++i) {
      const auto found = reports.find(far[i].first);
      if (found != reports.end()) measured[first + i].seconds = found->second.figures[0];
    }
  }

  bool crosses_numa(int a, int b) const {
    return host_of(a) == host_of(b) && crosses(bindings_, a, b);
  }

  void ping_inside_hosts() {
    std::vector<std::vector<Meeting>> rounds;
    for (const std::vector<int>& ranks : ranks_of_) {
      const std::vector<int> partners = ping_partners(ranks, bindings_);
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
    const auto rounds = probe_rounds(hosts());
    const double seconds = std::clamp(kStreamBudget / static_cast<double>(rounds.size()),
                                      kShortestStream, kLongestStream);
    for (const auto& round : rounds) {
      std::vector<Meeting> others = leaders(round);
      std::erase_if(others, [&](const Meeting& meeting) { return round_trip(meeting) > 0; });
      ping(others);
    }
    const std::vector<int> sites = sites_of(ranks_of_.size(), measured_.pings);
    const auto streamed = streamed_rounds(rounds, sites, measured_.pings);
    for (size_t i = 0; i < rounds.size(); ++i) {
      measured_.rounds.push_back(stream(leaders(streamed[i]), seconds));
      measure_private_links(leaders(rounds[i]), seconds);
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
  /// Far ones have a path of their own already, and would take seconds.
  void measure_suspects() {
    for (const Meeting& pair : slow_pairs(measured_, kMostSuspects)) {
      const std::vector<Meeting> meeting = leaders({pair});
      if (!is_far(round_trip(meeting.front()))) measure_alone(meeting);
    }
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
  std::map<HostPair, double> round_trips_;
  Measurements measured_;
};

}  // namespace

Fabric conduct(const std::shared_ptr<Group>& group, const std::vector<Fabric::Binding>& bindings,
               const FirstFindings& findings, TimePoint start, const ProbeOptions& options) {
  return Conductor(group, bindings, options).run(findings, start);
}

}  // namespace q7x2
