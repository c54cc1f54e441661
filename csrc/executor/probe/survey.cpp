#include "executor/probe/survey.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/build_id.h"
#include "base/digest.h"
#include "base/environment.h"
#include "base/log.h"
#include "executor/probe/announcement.h"
#include "executor/probe/courier.h"
#include "executor/probe/fabric_memory.h"
#include "executor/probe/probe.h"
#include "executor/probe/relay.h"
#include "fabric/catalogue.h"
#include "fabric/doubt.h"
#include "fabric/infer.h"
#include "fabric/json.h"
#include "fabric/private_links.h"
#include "fabric/routes.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// What rank 0 may tell instead of a Fabric, whose text begins with a brace.
constexpr std::string_view kProbe = "probe";
constexpr std::string_view kMayDefer = "probe, rates may be measured later";
constexpr const char* kNotMeasured = "not measured: Q7X2_PROBE=0";
constexpr std::string_view kFailure = "failure: ";    // kInvalidArgument
constexpr std::string_view kMismatch = "mismatch: ";  // the ranks disagree

enum class Probing { kNever, kWhereUnknown, kAlways, kAlwaysEveryPair };

Probing probing() {
  const std::string value = environment("Q7X2_PROBE");
  if (value == "0") return Probing::kNever;
  if (value.empty() || value == "auto") return Probing::kWhereUnknown;
  if (value == "force") return Probing::kAlways;
  if (value == "pairs") return Probing::kAlwaysEveryPair;
  throw Error(ErrorCode::kInvalidArgument,
              "Q7X2_PROBE: expected 0, auto, force or pairs, got '" + value + "'");
}

Fabric default_fabric(const Placement& placement, const std::string& note) {
  Fabric fabric = Fabric::assumed(placement.host_of);
  fabric.made.note = note;
  for (size_t host = 0; host < placement.names.size(); ++host) {
    fabric.hosts[host].name = placement.names[host];
    fabric.hosts[host].key = placement.keys[host];
  }
  return fabric;
}

/// Rank 0 of one group.
class Surveyor {
 public:
  Surveyor(const std::vector<PeerInfo>& peer_infos, const SurveyOptions& options)
      : peer_infos_(peer_infos), options_(options), placement_(placement_of(peer_infos)) {}

  /// Takes what the ranks say of themselves. Throws Error(kMismatch) where a rank has another
  /// build.
  std::vector<Announcement> hear() {
    std::vector<Announcement> all;
    bindings_.clear();
    for (size_t rank = 0; rank < peer_infos_.size(); ++rank) {
      const PeerInfo& each = peer_infos_[rank];
      const std::string who = "rank " + std::to_string(rank) + " (" + describe_process(each) + ")";
      all.push_back(Announcement::decode(each.announcement, build_id(), who));
      bindings_.push_back(all.back().binding);
    }
    return all;
  }

  /// What all ranks are told: also what went wrong.
  std::string decide() {
    try {
      hear();
      return choose();
    } catch (const Error& error) {
      const bool mismatch = error.code() == ErrorCode::kMismatch;
      return std::string(mismatch ? kMismatch : kFailure) + error.what();
    }
  }

  /// The same for each rank by itself, if all announce `known`; else nothing.
  std::string agree(const KnownFabric& known) {
    const std::vector<Announcement> all = hear();
    const bool all_know = std::ranges::all_of(
        all, [&](const Announcement& each) { return each.known == known.digest; });
    const bool fits = known.fabric && is_of_these_hosts(*known.fabric);
    return all_know && fits && !all.front().has_servers ? bound(*known.fabric) : "";
  }

  std::string without_rates(const std::vector<Latency>& latencies) {
    hear();
    Measurements measured;
    measured.host_of = placement_.host_of;
    for (size_t host = 0; host < placement_.names.size(); ++host) {
      measured.hosts.push_back({.name = placement_.names[host], .key = placement_.keys[host]});
    }
    for (const Latency& each : latencies) measured.pings.push_back(each.ping());
    Fabric fabric = infer_latencies(measured);
    fabric.made.source = Fabric::kLatencies;
    return bound(fabric);
  }

  std::string probe(const std::shared_ptr<Group>& group, ProbeOptions options) {
    hear();
    options.all_pairs = probing() == Probing::kAlwaysEveryPair;
    std::optional<Fabric> fabric;
    try {
      fabric = conduct_probe(group, bindings_, options);
    } catch (const Error& error) {
      // Ranks that died or left, or were told to stop, end the group; figures that make no sense
      // only end the probe.
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      fabric = default_fabric(placement_, std::string("the probe failed: ") + error.what());
      options_.warn(fabric->made.note);
    }
    fabric->made.torch = options_.torch;
    if (const std::string doubt = doubt_of(*fabric); !doubt.empty()) {
      fabric->made.note = "measured on a busy machine, so it counts for " +
                          std::to_string(kDoubtfulAge.count()) + " minutes: " + doubt;
      log(Level::kInfo,
          "the Fabric of group '" + group->membership().name() + "' was " + fabric->made.note);
    }
    std::string text = bound(*fabric);
    announce(group, text, options);
    if (fabric->made.source == "probe") catalogue(text);
    return text;
  }

 private:
  /// A process may pass as one of another host than when it was met last (Q7X2_HOST_ID).
  bool is_of_these_hosts(const Fabric& fabric) const {
    return fabric.host_of == placement_.host_of &&
           std::ranges::equal(fabric.hosts, placement_.keys, {}, &Fabric::Host::key);
  }

  std::string choose() {
    if (const std::string file = environment("Q7X2_FABRIC"); !file.empty()) {
      Fabric fabric = from_file(file);
      fabric.bindings = bindings_;
      const Fabric given = read_fabric(file);
      fabric.servers = servers(given.servers, given.racks.size() == fabric.racks.size());
      return to_json(fabric);
    }
    const Probing mode = probing();
    const auto usable = [this](const Fabric& known) { return usable_part(known, placement_); };
    if (const auto found = FabricMemory::instance().find(usable)) return bound(*found);
    if (mode == Probing::kNever) {
      return bound(default_fabric(placement_, kNotMeasured));
    }
    if (mode == Probing::kWhereUnknown) {
      if (peer_infos_.size() == 1) {
        return bound(default_fabric(placement_, "not measured: a single rank"));
      }
      if (const auto known = catalogued(catalogue_file(placement_.keys), catalogue_max_age())) {
        if (const auto found = usable(*known)) return bound(*found);
      }
    }
    const bool may_defer = options_.exchange && mode == Probing::kWhereUnknown;
    return std::string(may_defer ? kMayDefer : kProbe);
  }

  Fabric from_file(const std::string& file) const {
    const Fabric known = read_fabric(file);
    auto fabric = placed(known, placement_.host_of, placement_.keys, placement_.names, true);
    if (fabric && fabric->awaits_rates()) fabric->made.source = "file";  // what it says counts
    if (fabric) return *fabric;
    std::string names;
    for (const auto& name : placement_.names) names += (names.empty() ? "" : ", ") + name;
    std::string known_names;
    for (const auto& host : known.hosts)
      known_names += (known_names.empty() ? "" : ", ") + host.name;
    throw Error(ErrorCode::kInvalidArgument, "the fabric in " + file + " has the hosts " +
                                                 known_names + ", but the group is on " + names);
  }

  /// With the ranks where they run now.
  std::string bound(Fabric fabric) const {
    fabric.bindings = bindings_;
    const std::vector<int> cores = cores_of_hosts(placement_.host_of, bindings_);
    for (size_t rank = 0; rank < bindings_.size(); ++rank) {
      const auto host = static_cast<size_t>(placement_.host_of[rank]);
      const auto at = static_cast<size_t>(fabric.host_of[rank]);
      if (cores[host] > 0) fabric.hosts[at].cores = cores[host];
    }
    fabric.servers = servers({}, false);
    return to_json(fabric);
  }

  /// Those of the group. `known` has the rates of some, by their names, and their racks, if these
  /// are still those of the Fabric.
  std::vector<Fabric::Host> servers(std::vector<Fabric::Host> known, bool keeps_racks) const {
    std::vector<Fabric::Host> all;
    for (const std::string& name : options_.servers()) {
      const auto it = std::ranges::find(known, name, &Fabric::Host::name);
      if (it == known.end()) {
        all.push_back(assumed_server(name));
      } else {
        all.push_back(*it);
        known.erase(it);  // each of several servers with one name counts once
      }
      if (!keeps_racks) all.back().rack = 0;
    }
    return all;
  }

  void catalogue(const std::string& text) const {
    Fabric fabric = fabric_from_json(text);
    fabric.servers.clear();  // those of another job are others
    const std::string file = catalogue_file(placement_.keys);
    if (file.empty()) return;
    try {
      write_fabric(file, fabric);
    } catch (const Error& error) {
      options_.warn(std::string(error.what()) + "; the next start will measure again");
    }
  }

  const std::vector<PeerInfo>& peer_infos_;  // by rank
  const SurveyOptions& options_;
  const Placement placement_;
  std::vector<Fabric::Binding> bindings_;  // by rank
};

/// Throws what rank 0 says went wrong.
void check_decision(const std::string& decision) {
  const auto check = [&decision](std::string_view prefix, ErrorCode code) {
    if (decision.starts_with(prefix)) throw Error(code, decision.substr(prefix.size()), 0);
  };
  check(kFailure, ErrorCode::kInvalidArgument);
  check(kMismatch, ErrorCode::kMismatch);
}

/// All ranks, each for itself: the Fabric without rates; nothing if all hosts are near, or if the
/// group has private links, which must be known from the beginning.
std::string deferred(Group& group, const SurveyOptions& options) {
  const Membership& members = group.membership();
  if (members.has_private_networks()) return "";
  const Placement placement = placement_of(group);
  const int hosts = static_cast<int>(placement.names.size());
  std::vector<Latency> latencies;
  for (const std::string& theirs :
       options.exchange(encode_latencies(latencies_of(group, placement)))) {
    std::ranges::copy(decode_latencies(theirs, hosts), std::back_inserter(latencies));
  }
  return take_long(latencies) ? Surveyor(members.peer_infos(), options).without_rates(latencies)
                              : "";
}

/// The text of the Fabric that all ranks parse.
std::string carried_out(const std::shared_ptr<Group>& group, const SurveyOptions& options,
                        std::string decision) {
  const std::vector<int> order = placement_of(*group).order();
  const auto position = static_cast<int>(std::ranges::find(order, group->rank()) - order.begin());
  Surveyor surveyor(group->membership().peer_infos(), options);
  if (decision.empty()) {
    if (group->rank() == 0) decision = surveyor.decide();
    GroupCourier courier(group, kMaxFabricBytes, group->begun() + options.timeout);
    decision = spread(courier, order, position, decision);
  }
  check_decision(decision);
  if (decision == kMayDefer) {
    if (std::string text = deferred(*group, options); !text.empty()) return text;
    decision = kProbe;
  }
  if (decision != kProbe) return decision;
  const ProbeOptions how{.timeout = options.timeout};
  if (group->rank() != 0) return follow_probe(group, how);
  return surveyor.probe(group, how);
}

/// Collectives go over the links that the Fabric has and that are there, and between far hosts over
/// many connections.
void take_links(Group& group, const Fabric& fabric) {
  const auto host = [&](int rank) { return fabric.host_of[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const bool linked = find_link(fabric, host(rank), host(group.rank())) != nullptr;
    if (linked && group.membership().private_network(group.rank(), rank)) {
      Locked locked(group.runtime().lock());
      group.links().use_private_link(locked, rank);
    }
  }
  const Membership& members = group.membership();
  if (members.host_ranks().size() == static_cast<size_t>(members.world_size())) return;
  const Routes routes(fabric);
  Locked locked(group.runtime().lock());
  for (int rank = 0; rank < members.world_size(); ++rank) {
    if (members.same_host(rank)) continue;
    const double round_trip = routes.between(group.rank(), rank).cost.alpha +
                              routes.between(rank, group.rank()).cost.alpha;
    group.links().use_streams(locked, rank, round_trip);
  }
}

}  // namespace

KnownFabric::KnownFabric(Fabric known) : fabric(std::move(known)) {
  Digest all;
  all.add(to_json(*fabric));
  digest = std::to_string(all.value());
}

KnownFabric recall(const std::vector<PeerInfo>& members) {
  if (!environment("Q7X2_FABRIC").empty()) return {};  // rank 0 reads it
  const Placement placement = placement_of(members);
  auto fabric = FabricMemory::instance().find(
      [&](const Fabric& known) { return usable_part(known, placement); });
  if (!fabric && probing() == Probing::kNever) fabric = default_fabric(placement, kNotMeasured);
  return fabric ? KnownFabric(std::move(*fabric)) : KnownFabric();
}

std::string announcement_of_process(const KnownFabric& known, bool has_servers) {
  return Announcement{build_id(), own_binding(), known.digest, has_servers}.encode();
}

std::string decide_fabric(const std::vector<PeerInfo>& peer_infos, const SurveyOptions& options) {
  return Surveyor(peer_infos, options).decide();
}

std::string agreed_fabric(const std::vector<PeerInfo>& peer_infos, const KnownFabric& known,
                          const SurveyOptions& options) {
  return Surveyor(peer_infos, options).agree(known);
}

std::string probe_decision() {
  return std::string(kProbe);
}

std::shared_ptr<const Fabric> survey(const std::shared_ptr<Group>& group,
                                     const SurveyOptions& options, const std::string& decision) {
  auto fabric =
      std::make_shared<const Fabric>(fabric_from_json(carried_out(group, options, decision)));
  if (fabric->world_size() != group->world_size()) {
    throw Error(ErrorCode::kMismatch,
                "rank 0 tells a Fabric of " + std::to_string(fabric->world_size()) +
                    " ranks to a group of " + std::to_string(group->world_size()),
                0);
  }
  const Placement placement = placement_of(*group);
  // Subgroups' parts of what is known already add nothing.
  const bool known = FabricMemory::instance()
                         .find([&](const Fabric& f) { return sufficient_part(f, placement); })
                         .has_value();
  if (!known && sufficient(*fabric)) FabricMemory::instance().keep(fabric);
  take_links(*group, *fabric);
  return fabric;
}

void adopt(Group& group, const Fabric& fabric) {
  take_links(group, fabric);
}

std::shared_ptr<const Fabric> without_servers(Fabric fabric) {
  fabric.servers.clear();
  return std::make_shared<const Fabric>(std::move(fabric));
}

Fabric::Host assumed_server(const std::string& name) {
  Fabric::Host server = Fabric::assumed({0}).hosts.front();
  server.name = name;
  return server;
}

void remember_times(const Fabric& measured) {
  if (measured.made.source == "probe" && sufficient(measured))
    FabricMemory::instance().learn(measured);
}

}  // namespace q7x2
