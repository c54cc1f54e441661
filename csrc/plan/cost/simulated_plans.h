// SimulatedPlans: what a simulation has to know of the Plans of all ranks before it begins: which
// receive belongs to which send, the path of each message, the work of each op, the rates of all
// resources. It does not change once it is made, and all runs of a Simulator read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "fabric/fabric.h"
#include "plan/cost/prediction.h"
#include "plan/cost/site.h"
#include "plan/cost/symmetry.h"
#include "plan/ir/plan.h"

namespace q7x2 {

struct SimulatedPlans {
  /// What is to be known of an op while it runs. The ops of all ranks are counted through. Two fit
  /// into a cache line: a run of many ranks does little but wait for memory.
  struct alignas(32) Task {
    uint32_t rank = 0;
    uint32_t partner = 0;  ///< the receive of a send, the send of a receive
    uint32_t route = 0;    ///< the route of a send or a receive: index into `paths`
    uint32_t first_successor = 0;
    uint32_t num_successors = 0;  ///< see Op
    uint32_t sources = 0;
    /// A send of a coded block: number of contributions in its message; 0: it is not coded. A
    /// reduction: number of its coded sources.
    uint32_t contributions = 0;
    uint16_t part = 0;  ///< the part that gives it its length
    OpKind kind = OpKind::kCopy;
    bool local : 1 = false;           ///< a message within a host
    bool staged : 1 = false;          ///< an earlier send left the block in shared memory
    bool folded : 1 = false;          ///< the fold leaves it there, from the nearest cache
    bool to_part : 1 = false;         ///< it writes to the caller's buffer
    bool codes : 1 = false;           ///< a copy that encodes or decodes
    bool takes_residual : 1 = false;  ///< see Op
  };
  struct Path {
    uint32_t first = 0;  ///< index into `hops`
    uint32_t hops = 0;   ///< resources
    uint32_t cost = 0;   ///< index into `costs`
  };
  /// The cost of a message in addition to its bytes.
  struct Cost {
    double alpha = 0;
    double overhead = 0;
  };

  /// See Simulator.
  SimulatedPlans(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding,
                 std::optional<Symmetry> symmetry);

  /// Seconds that no schedule of these Plans can beat: what the busiest resource has to do.
  double bound(const SimulatedCall& call) const;
  std::span<const uint32_t> successors_of(const Task& task) const {
    return {plans[task.rank].successors.data() + task.first_successor, task.num_successors};
  }
  size_t resource(const Path& path, uint32_t hop) const { return hops[path.first + hop]; }
  const Cost& cost_of(uint32_t task) const { return costs[paths[tasks[task].route].cost]; }
  const Op& op(uint32_t index) const;
  // What is simulated for a member, a resource, a machine.
  size_t of_member(int member) const {
    return symmetry ? symmetry->of_rank(member) : static_cast<size_t>(member);
  }
  size_t of_resource(size_t resource) const {
    return symmetry ? symmetry->of_resource(resource) : resource;
  }
  size_t of_machine(size_t machine) const {
    return symmetry ? symmetry->of_machine(machine) : machine;
  }
  size_t machine_of(uint32_t rank) const {
    return of_machine(site.machines.of(static_cast<int>(rank)));
  }
  /// CPU seconds that an op takes on its rank for `bytes` bytes of elements.
  double work(uint32_t index, size_t bytes) const;
  /// Seconds until all ranks of the busiest machine have selected what they send.
  double selection(const SimulatedCall& call) const;
  /// Bytes a second that a resource lets through of a message.
  double rate(size_t resource, double message_bytes) const;
  /// The length of a send's message for `bytes` bytes of elements.
  double message_bytes(uint32_t send, size_t bytes) const;

  const std::span<const Plan> plans;
  const CodingCost coding;
  const Site site;
  const std::optional<Symmetry> symmetry;
  std::vector<uint32_t> first_task;  // by rank, and the total at the end
  std::vector<Task> tasks;
  std::vector<double> coding_seconds;  // per byte of elements, by task; empty: nothing is coded
  std::vector<double> copy_rates;      // by rank
  std::vector<double> reduce_rates;    // by rank
  std::vector<Path> paths;             // one for each pair of hosts that talks
  std::vector<uint32_t> hops;          // resources
  std::vector<Cost> costs;             // the different ones
  std::vector<double> rates;           // by resource, in bytes a second, of long messages
  std::vector<double> bursts;          // by resource, in bytes
  double incast_rate = std::numeric_limits<double>::infinity();

 private:
  /// The sends to member r are `all[first[r]]` to `all[first[r + 1] - 1]`, as indices into `tasks`.
  struct Sends {
    std::vector<uint32_t> first;
    std::vector<uint32_t> all;
  };
  Sends sends_by_receiver() const;
  /// Finds the receive of each send, and the other way round.
  void match_messages();
  void find_paths();
  void find_rates();
  /// Fills in `Task::contributions` and `coding_seconds`.
  void count_contributions();
};

}  // namespace q7x2
