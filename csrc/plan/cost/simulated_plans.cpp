#include "plan/cost/simulated_plans.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "plan/cost/model.h"
#include "plan/cost/part_lengths.h"

namespace q7x2 {

SimulatedPlans::SimulatedPlans(std::span<const Plan> all_plans, const Fabric& fabric,
                               const CodingCost& coding_cost, std::optional<Symmetry> turns)
    : plans(all_plans), coding(coding_cost), site(fabric), symmetry(std::move(turns)) {
  const auto count = static_cast<int>(plans.size());
  const bool fits = symmetry ? plans.size() == symmetry->num_ranks()
                             : count == fabric.world_size() || count == site.members.world_size();
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(plans.size()) +
                                                 " Plans for a fabric of " +
                                                 std::to_string(fabric.world_size()) + " ranks");
  }
  size_t total = 0;
  for (const Plan& plan : plans) total += plan.ops.size();
  tasks.reserve(total);
  first_task.push_back(0);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Plan& plan = plans[rank];
    std::vector<bool> staged(plan.num_stages);
    std::vector<bool> folded(plan.num_stages);
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::kReduce && op.stage != Op::kNoStage) folded[op.stage] = true;
    }
    for (const Op& op : plan.ops) {
      Task task{.rank = static_cast<uint32_t>(rank),
                .first_successor = op.first_successor,
                .num_successors = op.num_successors,
                .sources = op.num_sources,
                .part = op.length_of.index,
                .kind = op.kind,
                .to_part = op.destination.is_part(),
                .takes_residual = op.takes_residual};
      if (op.kind == OpKind::kSend) {
        task.local = site.members.same_host(static_cast<int>(rank), op.peer);
        if (task.local) {
          task.staged = staged[op.stage];
          task.folded = folded[op.stage];
          staged[op.stage] = true;
        }
      } else if (op.kind == OpKind::kCopy) {
        task.codes = op.destination.is_coded() || plan.sources_of(op)[0].is_coded();
      }
      tasks.push_back(task);
    }
    first_task.push_back(static_cast<uint32_t>(tasks.size()));
    const auto member = static_cast<int>(rank);
    copy_rates.push_back(rate_or_unlimited(site.members.copy_rate_of(member)));
    reduce_rates.push_back(rate_or_unlimited(site.members.reduce_rate_of(member)));
  }
  match_messages();
  find_paths();
  find_rates();
  if (std::ranges::any_of(plans, [](const Plan& plan) { return plan.num_coded > 0; })) {
    count_contributions();
  }
}

SimulatedPlans::Sends SimulatedPlans::sends_by_receiver() const {
  const size_t ranks = plans.size();
  Sends sends;
  sends.first.resize(ranks + 1);
  for (const Plan& plan : plans) {
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::kSend) ++sends.first[of_member(op.peer) + 1];
    }
  }
  std::partial_sum(sends.first.begin(), sends.first.end(), sends.first.begin());
  sends.all.resize(sends.first.back());
  std::vector<uint32_t> next(sends.first.begin(), sends.first.end() - 1);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (uint32_t i = 0; i < plans[rank].ops.size(); ++i) {
      const Op& op = plans[rank].ops[i];
      if (op.kind != OpKind::kSend) continue;
      sends.all[next[of_member(op.peer)]++] = first_task[rank] + i;
    }
  }
  return sends;
}

// Receiver by receiver: its receives are sorted by their senders, and each send to it looks among
// those of its rank. So it takes as many steps as there are messages.
void SimulatedPlans::match_messages() {
  const Sends sends = sends_by_receiver();
  struct Receive {
    uint16_t message;
    uint32_t op;
  };
  // The receives of one receiver, by sender.
  std::vector<std::vector<Receive>> receives(static_cast<size_t>(site.members.world_size()));
  std::vector<size_t> senders;
  size_t unmatched = 0;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (uint32_t i = 0; i < plans[rank].ops.size(); ++i) {
      const Op& op = plans[rank].ops[i];
      if (op.kind != OpKind::kRecv) continue;
      auto& those = receives[static_cast<size_t>(op.peer)];
      if (those.empty()) senders.push_back(static_cast<size_t>(op.peer));
      those.push_back({op.message, i});
      ++unmatched;
    }
    const auto by_message = [](const Receive& receive) { return receive.message; };
    for (const size_t sender : senders) {
      if (!std::ranges::is_sorted(receives[sender], {}, by_message)) {
        std::ranges::stable_sort(receives[sender], {}, by_message);
      }
    }
    for (uint32_t i = sends.first[rank]; i < sends.first[rank + 1]; ++i) {
      const uint32_t index = sends.all[i];
      const Task& send = tasks[index];
      const Op& op = this->op(index);
      const auto& those = receives[symmetry ? symmetry->seen_from(op.peer, send.rank) : send.rank];
      const uint32_t message =
          symmetry ? symmetry->message_seen_from(op.peer, op.message) : op.message;
      const auto found = std::ranges::lower_bound(those, message, {}, by_message);
      if (found == those.end() || found->message != message) {
        throw Error(ErrorCode::kInvalidArgument,
                    "rank " + std::to_string(op.peer) + " does not receive what rank " +
                        std::to_string(send.rank) + " sends: " + to_string(plans[send.rank], op));
      }
      --unmatched;
      tasks[index].partner = first_task[rank] + found->op;
      tasks[first_task[rank] + found->op].partner = index;
    }
    for (const size_t sender : senders) receives[sender].clear();
    senders.clear();
  }
  if (unmatched > 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(unmatched) + " receives without a send in " + plans[0].algorithm);
  }
}

// Host by host, so that what is known of a pair of hosts is found by the other host alone.
void SimulatedPlans::find_paths() {
  const std::vector<int>& host_of = site.members.host_of;
  std::vector<size_t> ranks(plans.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::ranges::stable_sort(ranks, {}, [&](size_t rank) { return host_of[rank]; });
  constexpr uint32_t kUnknown = ~uint32_t{0};
  struct Known {
    int source = -1;
    uint32_t near = kUnknown;      // paths
    uint32_t crossing = kUnknown;  // NUMA nodes
  };
  std::vector<Known> known(site.members.hosts.size());  // by the host of the receiver
  std::map<std::pair<double, double>, uint32_t> cost_of;
  for (const size_t rank : ranks) {
    const auto source = static_cast<int>(rank);
    for (uint32_t i = first_task[rank]; i < first_task[rank + 1]; ++i) {
      Task& task = tasks[i];
      if (task.kind != OpKind::kSend) continue;
      Task& receive = tasks[task.partner];
      const int destination = op(i).peer;
      Known& pair = known[static_cast<size_t>(host_of[static_cast<size_t>(destination)])];
      if (pair.source != host_of[rank]) pair = {.source = host_of[rank]};
      const bool crosses = task.local && site.members.crosses_numa(source, destination);
      uint32_t& path = crosses ? pair.crossing : pair.near;
      if (path == kUnknown) {
        path = static_cast<uint32_t>(paths.size());
        const Routes::Route route = site.routes.between(source, destination);
        const double turn =
            task.local && site.machines.is_crowded(source) ? model::kTurnSeconds : 0;
        const Cost cost{route.cost.alpha + turn, route.cost.overhead};
        const auto [at, is_new] = cost_of.try_emplace(std::pair(cost.alpha, cost.overhead),
                                                      static_cast<uint32_t>(costs.size()));
        if (is_new) costs.push_back(cost);
        paths.push_back({static_cast<uint32_t>(hops.size()),
                         static_cast<uint32_t>(route.resources.size()), at->second});
        for (const int hop : route.resources) {
          hops.push_back(static_cast<uint32_t>(of_resource(static_cast<size_t>(hop))));
        }
      }
      task.route = receive.route = path;
      receive.local = task.local;
    }
  }
}

void SimulatedPlans::find_rates() {
  std::vector<int> senders(site.routes.resources().size());
  for (const uint32_t resource : hops) ++senders[resource];
  for (size_t i = 0; i < senders.size(); ++i) {
    const Routes::Resource& resource = site.routes.resources()[i];
    const bool congests = resource.kind == Routes::Kind::kIngress && senders[i] > 1;
    rates.push_back(resource.rate * (congests ? model::incast_share(senders[i]) : 1));
    bursts.push_back(resource.burst);
    if (congests) incast_rate = std::min(incast_rate, resource.rate / senders[i]);
  }
}

// What is copied to a coded block is one contribution; a reduction has those of all its operands.
// Ops come after those whose blocks they read, so of each block the last writer is the one.
void SimulatedPlans::count_contributions() {
  constexpr uint32_t kNobody = ~uint32_t{0};
  coding_seconds.resize(tasks.size());
  std::vector<std::vector<uint32_t>> makers(tasks.size());  // by op: of its coded sources
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    std::vector<uint32_t> writer(plans[rank].num_coded, kNobody);
    for (uint32_t index = first_task[rank]; index < first_task[rank + 1]; ++index) {
      const Op& each = op(index);
      for (const Block& source : plans[rank].sources_of(each)) {
        makers[index].push_back(source.is_coded() ? writer[source.index] : kNobody);
      }
      if (each.kind != OpKind::kSend && each.destination.is_coded()) {
        writer[each.destination.index] = index;
      }
    }
  }
  std::vector<uint32_t> known(tasks.size());
  const auto count = [&](const auto& self, uint32_t index) -> uint32_t {
    if (known[index] > 0) return known[index];
    uint32_t sum = 0;
    if (op(index).kind == OpKind::kRecv) {
      sum = self(self, tasks[index].partner);
    } else {
      for (const uint32_t maker : makers[index]) sum += maker == kNobody ? 1 : self(self, maker);
    }
    return known[index] = sum;
  };
  for (uint32_t index = 0; index < tasks.size(); ++index) {
    const Op& each = op(index);
    if (each.kind == OpKind::kRecv) continue;
    if (each.kind == OpKind::kSend) {
      const bool coded = plans[tasks[index].rank].sources_of(each)[0].is_coded();
      tasks[index].contributions = coded ? count(count, index) : 0;
      continue;
    }
    if (each.kind == OpKind::kReduce) {
      const auto sources = plans[tasks[index].rank].sources_of(each);
      tasks[index].contributions =
          static_cast<uint32_t>(std::ranges::count_if(sources, &Block::is_coded));
    }
    double& seconds = coding_seconds[index];
    for (const uint32_t maker : makers[index]) {
      if (maker != kNobody) seconds += 1 / coding.of(count(count, maker)).decode_rate;
    }
    if (each.destination.is_coded()) seconds += 1 / coding.of(count(count, index)).encode_rate;
  }
}

double SimulatedPlans::selection(const SimulatedCall& call) const {
  if (plans[0].edges == Edges::kNone) return 0;
  const size_t inputs = plans[0].collective == Collective::kReduceScatter
                            ? static_cast<size_t>(plans[0].num_members())
                            : 1;
  const double seconds = static_cast<double>(call.bytes * inputs) / coding.select_rate;
  return seconds * site.machines.most_turns();
}

const Op& SimulatedPlans::op(uint32_t index) const {
  const uint32_t rank = tasks[index].rank;
  return plans[rank].ops[index - first_task[rank]];
}

double SimulatedPlans::work(uint32_t index, size_t bytes) const {
  const Task& task = tasks[index];
  const auto count = static_cast<double>(bytes);
  const double copy_rate = copy_rates[task.rank];
  switch (task.kind) {
    case OpKind::kSend: {
      const bool is_staged_here = task.local && !task.staged;
      double staging = is_staged_here ? message_bytes(index, bytes) / copy_rate : 0;
      if (task.folded) staging *= model::kFoldedShare;
      return cost_of(index).overhead + staging;
    }
    case OpKind::kRecv: {
      const bool in_place = !task.local || !task.to_part;
      return cost_of(index).overhead + (in_place ? 0 : count / copy_rate);
    }
    case OpKind::kCopy:
      if (task.codes) return count * coding_seconds[index];
      // Calls with coded edges nearly always have a residual to be added.
      if (task.takes_residual) {
        return plans[task.rank].edges == Edges::kNone ? 0 : count / reduce_rates[task.rank];
      }
      return count / copy_rate;
    case OpKind::kReduce: {
      const double coded = task.contributions;
      // Every operand is read once and the sum written once, however many they are; where some are
      // coded, decoding writes it.
      const double passes = task.sources - coded + (coded > 0 ? 0 : 1);
      const double codec = coding_seconds.empty() ? 0 : coding_seconds[index];
      return count * (passes / model::kPasses / reduce_rates[task.rank] + codec);
    }
  }
  return 0;
}

double SimulatedPlans::message_bytes(uint32_t send, size_t bytes) const {
  const uint32_t contributions = tasks[send].contributions;
  return static_cast<double>(bytes) * (contributions > 0 ? coding.of(contributions).ratio : 1);
}

double SimulatedPlans::rate(size_t resource, double message_bytes) const {
  return message_bytes > model::kShortBytes ? rates[resource]
                                            : site.routes.resources()[resource].rate;
}

double SimulatedPlans::bound(const SimulatedCall& call) const {
  const PartLengths lengths(plans[0], call.slice_bytes);
  std::vector<double> wire(site.routes.resources().size());
  const std::vector<Machine>& machines = site.machines.all();
  std::vector<double> cpu(machines.size());
  for (uint32_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    const size_t bytes = lengths.of(task.part);
    if (bytes == 0) continue;
    const size_t machine = machine_of(task.rank);
    cpu[machine] += work(i, bytes) / machines[machine].cores;
    if (task.kind != OpKind::kSend) continue;
    const Path& path = paths[task.route];
    for (uint32_t hop = task.local ? 1 : 0; hop < path.hops; ++hop) {
      const size_t r = resource(path, hop);
      wire[r] += message_bytes(i, bytes) / rate(r, message_bytes(i, bytes));
    }
  }
  const double slices = static_cast<double>(call.bytes) / static_cast<double>(call.slice_bytes);
  return std::max(*std::max_element(wire.begin(), wire.end()),
                  *std::max_element(cpu.begin(), cpu.end())) *
             slices +
         selection(call);
}

}  // namespace q7x2
