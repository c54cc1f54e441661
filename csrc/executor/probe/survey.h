// Survey: how the ranks of a new group come to one and the same Fabric.
//
// Each rank says on its peer info which build of q7x2 it has and what it is bound to. Rank 0
// decides, and all parse the text it gives out, so they hold equal Fabrics whatever they know or
// are set to themselves. If rank 0 learns of all ranks first while they find each other
// (Bootstrap), that costs no message: what it decides comes with the peer infos. Else it takes
// ceil(log2 n) steps. It decides in this order:
//
//   1. the file that Q7X2_FABRIC names
//   2. what this process has found for an earlier group on these hosts
//   3. defaults, where Q7X2_PROBE=0, and for groups of one rank
//   4. the catalogue, unless Q7X2_PROBE=force (or pairs)
//   5. a probe, whose result goes into the catalogue. Far hosts may measure latencies alone, and
//      tell all ranks in one exchange; a probe in the background finds the rates
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "transport/group/group.h"

namespace q7x2 {

struct SurveyOptions {
  /// Called with one sentence where something failed that the group can do without.
  std::function<void(const std::string&)> warn;
  std::string torch;  ///< its version, for the record
  /// On rank 0: the names of the servers that serve the group. Called once the rates of the ranks'
  /// hosts are known. The Fabric has these servers, with the rates that the file says; others are
  /// assumed_server.
  std::function<std::vector<std::string>()> servers = [] { return std::vector<std::string>(); };
  /// Gives a text to all ranks, and returns what each gave. If it is there, on all ranks, hosts
  /// that are far from each other measure latencies alone, and the Fabric `awaits_rates`
  /// (executor/probe/background_probe.h).
  std::function<std::vector<std::string>(const std::string& mine)> exchange = nullptr;
  std::chrono::milliseconds timeout{30'000};  ///< for the making of the group, and for a probe
};

/// What a process knows already of the hosts of a new group.
struct KnownFabric {
  std::optional<Fabric> fabric;
  std::string digest;  ///< empty: it knows too little

  KnownFabric() = default;
  explicit KnownFabric(Fabric known);
};
KnownFabric recall(const std::vector<PeerInfo>& members);

/// What this rank says of itself on its peer info. `has_servers`: on rank 0, see Announcement.
std::string announcement_of_process(const KnownFabric& known = {}, bool has_servers = false);
/// Where no rank decides first, because all learn of all at once: what all ranks decide, each for
/// itself, for `survey`; empty if they know different things, or if there are servers.
std::string agreed_fabric(const std::vector<PeerInfo>& peer_infos, const KnownFabric& known,
                          const SurveyOptions& options);
/// Rank 0, before there is a group: what it decides for the ranks with these peer infos, for
/// `survey`. `options.servers` is not called: there must be none.
std::string decide_fabric(const std::vector<PeerInfo>& peer_infos, const SurveyOptions& options);

/// The decision that the ranks measure all there is.
std::string probe_decision();

/// All ranks of a new group call it, with what rank 0 has decided; empty: it decides now. Throws on
/// all ranks what went wrong on rank 0, Error(kMismatch) on all ranks where one has another build,
/// and the error of the group where a rank dies.
std::shared_ptr<const Fabric> survey(const std::shared_ptr<Group>& group,
                                     const SurveyOptions& options,
                                     const std::string& decision = {});

/// The same where all ranks hold an equal Fabric of the group already: nobody measures or talks.
void adopt(Group& group, const Fabric& fabric);

/// By which the calls of the ranks alone are planned.
std::shared_ptr<const Fabric> without_servers(Fabric fabric);

/// A server of this name, for whose rates the defaults are taken.
Fabric::Host assumed_server(const std::string& name);

/// Later groups of this process on the hosts of `measured` know its tuned times, and it has no
/// others. Those of Fabrics that come from Q7X2_FABRIC or are defaults do not: they are read anew.
void remember_times(const Fabric& measured);

}  // namespace q7x2
