#include "executor/probe/probe.h"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/version.h"
#include "executor/probe/conductor.h"
#include "executor/probe/courier.h"
#include "executor/probe/host_description.h"
#include "executor/probe/participant.h"
#include "executor/probe/relay.h"
#include "executor/probe/tournament.h"
#include "fabric/json.h"
#include "transport/ucx/ucx.h"

namespace q7x2 {
namespace {

constexpr std::chrono::seconds kNatPatience{3};
constexpr std::chrono::milliseconds kNap{5};

/// All leaders of hosts: measures latencies to others, and describes this one. The first leader
/// gets what all have found.
FirstFindings first_findings(const std::shared_ptr<Group>& group, const Placement& placement,
                             const ProbeOptions& options) {
  const std::vector<int> leaders = placement.leaders();
  const int hosts = static_cast<int>(leaders.size());
  const int host = placement.host_of[static_cast<size_t>(group->rank())];
  const std::string latencies = encode_latencies(latencies_of(*group, placement));
  GroupCourier courier(group, kMaxFabricBytes, Clock::now() + options.timeout);
  FirstFindings findings;
  for (const std::string& text :
       gather(courier, leaders, host, encode_list({to_json(describe_host()), latencies}))) {
    const std::vector<std::string> parts = decode_list(text);
    if (parts.size() != 2) throw Error(ErrorCode::kMismatch, "a host hands in other findings");
    findings.descriptions.push_back(parts[0]);
    std::ranges::copy(decode_latencies(parts[1], hosts), std::back_inserter(findings.latencies));
  }
  return findings;
}

/// Brings the result, and with it the end: whoever gets it waits for an order until then.
class ResultCourier final : public Courier {
 public:
  ResultCourier(const std::shared_ptr<Group>& group, const ProbeOptions& options)
      : me_(group, options), courier_(group, kMaxFabricBytes, Clock::now() + options.timeout) {}

  void send(int rank, const std::string& text) override {
    me_.send_value(rank, Order::kTag, Order{.act = Order::Act::kEnd});
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

Wire wire_of(const Order& order, const Group& group) {
  if (order.wire == static_cast<int32_t>(Wire::kShared)) return Wire::kShared;
  if (order.wire == static_cast<int32_t>(Wire::kStream) && order.peer >= 0 &&
      order.peer < group.world_size() &&
      group.membership().peer_info(order.peer).stream_port != 0 &&
      group.membership().peer_info(group.rank()).stream_port != 0) {
    return Wire::kStream;
  }
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

/// The round trips to the leaders beyond NAT, whose ports for heartbeats cannot be reached, over
/// many connections. Leaves out those that are not known within seconds.
std::vector<Latency> latencies_through_nat(Group& group, int host, const std::vector<int>& leaders,
                                           const std::vector<std::pair<int, int>>& pairs) {
  std::vector<int> others;  // hosts
  for (const auto& [a, b] : pairs) {
    const int rank = leaders[static_cast<size_t>(b)];
    if (a == host && is_nat_between(group.membership().peer_info(group.rank()),
                                    group.membership().peer_info(rank))) {
      others.push_back(b);
    }
  }
  std::vector<Latency> found;
  for (const TimePoint until = Clock::now() + kNatPatience; !others.empty();) {
    {
      Locked locked(group.runtime().lock());
      std::erase_if(others, [&](int b) {
        const int rank = leaders[static_cast<size_t>(b)];
        if (!group.links().connect(locked, rank)) return true;
        const StreamDuration shortest = group.membership().peer(rank).stream->shortest_rtt();
        if (shortest > StreamDuration::zero())
          found.push_back({host, b, std::chrono::duration<double>(shortest).count()});
        return shortest > StreamDuration::zero();
      });
    }
    if (Clock::now() >= until) break;
    if (!others.empty()) std::this_thread::sleep_for(kNap);
    group.check();
  }
  return found;
}

}  // namespace

std::vector<Latency> latencies_of(Group& group, const Placement& placement) {
  const std::vector<int> ranks = placement.leaders();
  if (std::ranges::find(ranks, group.rank()) == ranks.end()) return {};
  std::vector<PeerInfo> leaders;
  for (const int rank : ranks) leaders.push_back(group.membership().peer_info(rank));
  std::vector<std::pair<int, int>> pairs;
  for (const auto& round : probe_rounds(static_cast<int>(ranks.size())))
    pairs.insert(pairs.end(), round.begin(), round.end());
  const int host = placement.host_of[static_cast<size_t>(group.rank())];
  std::vector<Latency> all = measure_latencies(leaders, host, pairs, [&] { group.check(); });
  std::ranges::copy(latencies_through_nat(group, host, ranks, pairs), std::back_inserter(all));
  return all;
}

Fabric conduct_probe(const std::shared_ptr<Group>& group,
                     const std::vector<Fabric::Binding>& bindings, const ProbeOptions& options) {
  const TimePoint start = Clock::now();
  const FirstFindings findings = first_findings(group, placement_of(*group), options);
  Fabric fabric = conduct(group, bindings, findings, start, options);
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
    first_findings(group, placement, options);
  }
  while (true) {
    const auto [order, from] = me.receive_value<Order>(MessageTask::kAnySource, Order::kTag);
    const bool is_end = order.act == Order::Act::kEnd;
    const int expected = is_end ? spread_source(order_of_ranks, position) : 0;
    if (from != expected) {
      throw Error(ErrorCode::kMismatch,
                  "an order of the probe comes from rank " + std::to_string(from), from);
    }
    if (is_end) {
      ResultCourier courier(group, options);
      return spread(courier, order_of_ranks, position, "");
    }
    if (order.peer < 0 || order.peer >= group->world_size() || order.peer == group->rank()) {
      throw Error(ErrorCode::kMismatch,
                  "the probe wants a talk with rank " + std::to_string(order.peer), 0);
    }
    me.send_value(0, Order::kReportTag, me.obey(order, wire_of(order, *group)));
  }
}

}  // namespace q7x2
