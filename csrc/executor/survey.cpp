#include "executor/survey.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>

#include "executor/probe.h"
#include "fabric/catalogue.h"
#include "fabric/json.h"

namespace q7x2 {
namespace {

// What rank 0 may share in place of a Fabric, whose text begins with a brace.
constexpr std::string_view kProbe = "probe";
constexpr std::string_view kFailure = "failure: ";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

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
    // Of the other hosts only a probe would know.
    fabric.hosts[host].cores = usable_cpus();
  }
  return fabric;
}

/// Rank 0 of one group.
class Surveyor {
 public:
  Surveyor(std::shared_ptr<Group> group, const SurveyOptions& options)
      : group_(std::move(group)), options_(options), placement_(placement_of(*group_)) {}

  std::string decide() {
    if (const std::string file = environment("Q7X2_FABRIC"); !file.empty()) {
      return to_json(from_file(file));
    }
    const Probing mode = probing();
    const auto usable = [this](const Fabric& known) { return sufficient_part(known, placement_); };
    if (const auto found = Memory::instance().find(usable)) return to_json(*found);
    if (mode == Probing::kNever) {
      return to_json(default_fabric(placement_, "not measured: Q7X2_PROBE=0"));
    }
    if (mode == Probing::kWhereUnknown) {
      if (group_->world_size() == 1) {
        return to_json(default_fabric(placement_, "not measured: a single rank"));
      }
      if (const auto known = catalogued(catalogue_file(placement_.keys), catalogue_max_age())) {
        if (const auto found = usable(*known)) return to_json(*found);
      }
    }
    return std::string(kProbe);
  }

  std::string probe() {
    const ProbeOptions options = probe_options();
    std::optional<Fabric> fabric;
    try {
      fabric = conduct_probe(group_, options);
    } catch (const Error& error) {
      // Ranks that died or left, or were told to stop, end the group; figures that make no sense
      // only end the probe.
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      fabric = default_fabric(placement_, std::string("the probe failed: ") + error.what());
      options_.warn(fabric->made.note);
    }
    fabric->made.torch = options_.torch;
    std::string text = to_json(*fabric);
    announce(group_, text, options);
    if (fabric->made.source == "probe") catalogue(*fabric);
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

  void catalogue(const Fabric& fabric) const {
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
};

std::string lead(const std::shared_ptr<Group>& group, const SurveyOptions& options) {
  std::string decision;
  std::optional<Error> failure;
  Surveyor surveyor(group, options);
  try {
    decision = surveyor.decide();
  } catch (const Error& error) {
    failure = error;
    decision = std::string(kFailure) + error.what();
  }
  if (group->world_size() > 1) options.share(&decision);
  if (failure) throw Error(*failure);
  return decision == kProbe ? surveyor.probe() : decision;
}

std::string follow(const std::shared_ptr<Group>& group, const SurveyOptions& options) {
  const std::string decision = options.share(nullptr);
  if (decision == kProbe) return follow_probe(group, {.timeout = options.timeout});
  if (decision.rfind(kFailure, 0) == 0) {
    throw Error(ErrorCode::kInvalidArgument, decision.substr(kFailure.size()), 0);
  }
  return decision;
}

/// Collectives go over the links that the Fabric has and that are there.
void take_private_links(Group& group, const Fabric& fabric) {
  const auto host = [&](int rank) { return fabric.host_of[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const bool linked =
        std::any_of(fabric.links.begin(), fabric.links.end(), [&](const Fabric::Link& link) {
          return std::minmax(link.a, link.b) == std::minmax(host(rank), host(group.rank()));
        });
    if (linked && group.has_private_link(group.rank(), rank)) group.use_private_link(rank);
  }
}

}  // namespace

std::shared_ptr<const Fabric> survey(const std::shared_ptr<Group>& group,
                                     const SurveyOptions& options) {
  const std::string text = group->rank() == 0 ? lead(group, options) : follow(group, options);
  auto fabric = std::make_shared<const Fabric>(fabric_from_json(text));
  const Placement placement = placement_of(*group);
  // Subgroups' parts of what is known already add nothing.
  const bool known = Memory::instance()
                         .find([&](const Fabric& f) { return sufficient_part(f, placement); })
                         .has_value();
  if (!known && sufficient(*fabric)) Memory::instance().keep(fabric);
  take_private_links(*group, *fabric);
  return fabric;
}

void remember_times(const Fabric& measured) {
  if (measured.made.source == "probe" && sufficient(measured)) Memory::instance().learn(measured);
}

}  // namespace q7x2
