#include "executor/probe/survey.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/environment.h"
#include "base/log.h"
#include "executor/probe/announcement.h"
#include "executor/probe/courier.h"
#include "executor/probe/probe.h"
#include "executor/probe/relay.h"
#include "fabric/catalogue.h"
#include "fabric/doubt.h"
#include "fabric/json.h"
#include "fabric/private_links.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// What rank 0 may tell instead of a Fabric, whose text begins with a brace.
constexpr std::string_view kProbe = "probe";
constexpr std::string_view kFailure = "failure: ";    // kInvalidArgument
constexpr std::string_view kMismatch = "mismatch: ";  // of the ranks

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

/// What this process has measured or read, newest first.
class Memory {
 public:
  static Memory& instance() {
    static Memory memory;
    return memory;
  }

  template <typename Accept>
  std::optional<Fabric> find(const Accept& accept) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& fabric : fabrics_) {
      if (auto found = accept(*fabric)) return found;
    }
    return std::nullopt;
  }

  void keep(const std::shared_ptr<const Fabric>& fabric) {
    const std::lock_guard<std::mutex> lock(mutex_);
    push(fabric);
  }

  /// A Fabric of the same hosts learns the times of `measured`; where there is none, that is kept.
  void learn(const Fabric& measured) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool known = false;
    for (auto& fabric : fabrics_) {
      if (!fabric->same_hosts(measured)) continue;
      known = true;
      auto wiser = std::make_shared<Fabric>(*fabric);
      wiser->learn(measured.tuned);
      fabric = std::move(wiser);
    }
    if (!known) push(std::make_shared<const Fabric>(measured));
  }

 private:
  void push(const std::shared_ptr<const Fabric>& fabric) {
    constexpr size_t kMost = 8;
    fabrics_.push_front(fabric);
    if (fabrics_.size() > kMost) fabrics_.pop_back();
  }

  std::mutex mutex_;
  std::deque<std::shared_ptr<const Fabric>> fabrics_;
};

/// Whether all was measured that matters between these ranks.
bool sufficient(const Fabric& fabric) {
  const bool several_hosts = fabric.hosts.size() > 1;
  const bool shared_hosts = fabric.host_of.size() > fabric.hosts.size();
  return (!several_hosts || fabric.network.measured) && (!shared_hosts || fabric.memory.measured);
}

/// What `known` says of these ranks, if that is enough.
std::optional<Fabric> sufficient_part(const Fabric& known, const Placement& placement) {
  auto part = placed(known, placement.host_of, placement.keys, placement.names, false);
  if (part && !sufficient(*part)) part.reset();
  return part;
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
  Surveyor(std::shared_ptr<Group> group, const SurveyOptions& options)
      : group_(std::move(group)), options_(options), placement_(placement_of(*group_)) {}

  /// Takes what the ranks say of themselves. Throws Error(kMismatch) where a rank has another
  /// build.
  void meet(const std::vector<std::string>& announcements) {
    const std::vector<int> order = placement_.order();
    bindings_.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const int rank = order[i];
      bindings_[static_cast<size_t>(rank)] =
          Announcement::decode(announcements[i], options_.build,
                               group_->membership().describe(rank))
              .binding;
    }
  }

  std::string decide() {
    if (const std::string file = environment("Q7X2_FABRIC"); !file.empty()) {
      Fabric fabric = from_file(file);
      fabric.bindings = bindings_;
      const Fabric given = read_fabric(file);
      fabric.servers = servers(given.servers, given.racks.size() == fabric.racks.size());
      return to_json(fabric);
    }
    const Probing mode = probing();
    const auto usable = [this](const Fabric& known) -> std::optional<Fabric> {
      if (!doubt_of(known).empty() && !is_young(known, kDoubtfulAge)) return std::nullopt;
      return sufficient_part(known, placement_);
    };
    if (const auto found = Memory::instance().find(usable)) return bound(*found);
    if (mode == Probing::kNever) {
      return bound(default_fabric(placement_, "not measured: Q7X2_PROBE=0"));
    }
    if (mode == Probing::kWhereUnknown) {
      if (group_->world_size() == 1) {
        return bound(default_fabric(placement_, "not measured: a single rank"));
      }
      if (const auto known = catalogued(catalogue_file(placement_.keys), catalogue_max_age())) {
        if (const auto found = usable(*known)) return bound(*found);
      }
    }
    return std::string(kProbe);
  }

  std::string probe() {
    const ProbeOptions options = probe_options();
    std::optional<Fabric> fabric;
    try {
      fabric = conduct_probe(group_, bindings_, options);
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
          "the Fabric of group '" + group_->membership().name() + "' was " + fabric->made.note);
    }
    std::string text = bound(*fabric);
    announce(group_, text, options);
    if (fabric->made.source == "probe") catalogue(text);
    return text;
  }

  ProbeOptions probe_options() const {
    return {probing() == Probing::kAlwaysEveryPair, options_.timeout};
  }

 private:
  Fabric from_file(const std::string& file) const {
    const Fabric known = read_fabric(file);
    auto fabric = placed(known, placement_.host_of, placement_.keys, placement_.names, true);
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
        known.erase(it);  // of several with one name each counts once
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

  const std::shared_ptr<Group> group_;
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

/// The text of the Fabric that all ranks parse.
std::string decided(const std::shared_ptr<Group>& group, const SurveyOptions& options) {
  const std::vector<int> order = placement_of(*group).order();
  const auto position = static_cast<int>(std::ranges::find(order, group->rank()) - order.begin());
  GroupCourier courier(group, kMaxFabricBytes, group->begun() + options.timeout);
  const Announcement mine{options.build, own_binding()};
  const std::vector<std::string> announcements = gather(courier, order, position, mine.encode());
  if (group->rank() != 0) {
    const std::string decision = spread(courier, order, position, "");
    check_decision(decision);
    return decision == kProbe ? follow_probe(group, {.timeout = options.timeout}) : decision;
  }
  Surveyor surveyor(group, options);
  std::string decision;
  std::optional<Error> failure;
  try {
    surveyor.meet(announcements);
    decision = surveyor.decide();
  } catch (const Error& error) {
    failure = error;
    const bool mismatch = error.code() == ErrorCode::kMismatch;
    decision = std::string(mismatch ? kMismatch : kFailure) + error.what();
  }
  spread(courier, order, position, decision);
  if (failure) throw Error(*failure);
  return decision == kProbe ? surveyor.probe() : decision;
}

/// Collectives go over the links that the Fabric has and that are there.
void take_private_links(Group& group, const Fabric& fabric) {
  const auto host = [&](int rank) { return fabric.host_of[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const bool linked = find_link(fabric, host(rank), host(group.rank())) != nullptr;
    if (linked && group.membership().private_network(group.rank(), rank)) {
      Locked locked(group.runtime().lock());
      group.links().use_private_link(locked, rank);
    }
  }
}

}  // namespace

std::shared_ptr<const Fabric> survey(const std::shared_ptr<Group>& group,
                                     const SurveyOptions& options) {
  auto fabric = std::make_shared<const Fabric>(fabric_from_json(decided(group, options)));
  if (fabric->world_size() != group->world_size()) {
    throw Error(ErrorCode::kMismatch,
                "rank 0 tells a Fabric of " + std::to_string(fabric->world_size()) +
                    " ranks to a group of " + std::to_string(group->world_size()),
                0);
  }
  const Placement placement = placement_of(*group);
  // Subgroups' parts of what is known already add nothing.
  const bool known = Memory::instance()
                         .find([&](const Fabric& f) { return sufficient_part(f, placement); })
                         .has_value();
  if (!known && sufficient(*fabric)) Memory::instance().keep(fabric);
  take_private_links(*group, *fabric);
  return fabric;
}

void adopt(Group& group, const Fabric& fabric) {
  take_private_links(group, fabric);
}

Fabric::Host assumed_server(const std::string& name) {
  Fabric::Host server = Fabric::assumed({0}).hosts.front();
  server.name = name;
  return server;
}

void remember_times(const Fabric& measured) {
  if (measured.made.source == "probe" && sufficient(measured)) Memory::instance().learn(measured);
}

}  // namespace q7x2
