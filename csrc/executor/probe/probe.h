// The probe: all ranks of a new group measure their hosts and the network between them.
//
// Rank 0 conducts. It tells ranks whom to talk to, waits for their reports, and goes on to the next
// round, so that measurements that would disturb each other do not overlap, and those that are to
// compete do. The other ranks follow until they are told the result.
//
//   1. Each host's first rank, its *leader*, measures latencies to other leaders, all at once
//      (latencies.h). Then it describes its host and measures how fast one core copies, adds and
//      codes. It does so unasked.
//   2. Leaders ping a few ranks of their own host.
//   3. A tournament of the leaders: in each round all talk in pairs, first a ping if they are near,
//      then a stream in both directions. Up to 16 hosts every two meet; of more, each meets those
//      at distances 1, 2, 4, ... and the rounds grow with the logarithm.
//
// What scatters is measured up to three times, and the steadiest figures count (fabric/doubt.h).
// fabric/infer.h makes the Fabric of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/probe/latencies.h"
#include "executor/probe/placement.h"
#include "executor/probe/probe_options.h"
#include "fabric/fabric.h"
#include "transport/group/group.h"

namespace q7x2 {

/// What this rank finds of the latencies between hosts; nothing if it is no leader.
std::vector<Latency> latencies_of(Group& group, const Placement& placement);

/// Rank 0 calls it while the others call follow_probe. Returns what was found. `bindings`: by rank.
Fabric conduct_probe(const std::shared_ptr<Group>& group,
                     const std::vector<Fabric::Binding>& bindings, const ProbeOptions& options);
/// Rank 0, after conduct_probe: the others return `result`. It takes ceil(log2 n) steps.
void announce(const std::shared_ptr<Group>& group, const std::string& result,
              const ProbeOptions& options);
/// The other ranks: do as they are told until the result is announced, and return it.
std::string follow_probe(const std::shared_ptr<Group>& group, const ProbeOptions& options);

}  // namespace q7x2
