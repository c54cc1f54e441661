#include "plan/simulator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/model.h"
#include "plan/part_lengths.h"
#include "plan/simulated_run.h"

namespace q7x2 {

Simulator::Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding)
    : plans_(plans), coding_(coding), site_(fabric) {
  const auto count = static_cast<int>(plans.size());
  if (count != fabric.world_size() && count != site_.members.world_size()) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(plans.size()) +
                                                 " Plans for a fabric of " +
                                                 std::to_string(fabric.world_size()) + " ranks");
  }
  first_op_.push_back(0);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    rank_of_.insert(rank_of_.end(), plans[rank].ops.size(), static_cast<uint32_t>(rank));
    first_op_.push_back(static_cast<uint32_t>(rank_of_.size()));
  }
  messages_.resize(rank_of_.size());
  send_of_.resize(rank_of_.size());
  coding_seconds_.resize(rank_of_.size());

  // Receives by source and message, to be found by their sends.
  using Name = std::tuple<int32_t, uint16_t, uint32_t>;
  std::vector<std::vector<Name>> receives(plans.size());
  size_t unmatched = 0;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (uint32_t i = 0; i < plans[rank].ops.size(); ++i) {
      const Op& op = plans[rank].ops[i];
      if (op.kind == OpKind::kRecv) receives[rank].emplace_back(op.peer, op.message, i);
    }
    std::sort(receives[rank].begin(), receives[rank].end());
    unmatched += receives[rank].size();
  }

  std::map<uint64_t, uint32_t> path_of;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Plan& plan = plans[rank];
    std::vector<bool> staged(plan.num_stages);
    std::vector<bool> folded(plan.num_stages);
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::kReduce && op.stage != Op::kNoStage) folded[op.stage] = true;
    }
    for (uint32_t i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (op.kind != OpKind::kSend) continue;
      const auto& candidates = receives[static_cast<size_t>(op.peer)];
      const auto found =
          std::lower_bound(candidates.begin(), candidates.end(),
                           Name(static_cast<int32_t>(rank), op.message, uint32_t{0}));
      if (found == candidates.end() || std::get<0>(*found) != static_cast<int32_t>(rank) ||
          std::get<1>(*found) != op.message) {
        throw Error(ErrorCode::kInvalidArgument,
                    "rank " + std::to_string(op.peer) + " does not receive what rank " +
                        std::to_string(rank) + " sends: " + to_string(plan, op));
      }
      --unmatched;
      Message& message = messages_[first_op_[rank] + i];
      message.receive = first_op_[static_cast<size_t>(op.peer)] + std::get<2>(*found);
      send_of_[message.receive] = first_op_[rank] + i;
      message.local = site_.members.same_host(static_cast<int>(rank), op.peer);
      if (message.local) {
        message.staged = staged[op.stage];
        message.folded = folded[op.stage];
        staged[op.stage] = true;
      }
      const uint64_t key = site_.routes.key(static_cast<int>(rank), op.peer);
      const auto [path, is_new] = path_of.emplace(key, static_cast<uint32_t>(paths_.size()));
      if (is_new) {
        const auto& route = site_.routes.between(static_cast<int>(rank), op.peer);
        const double turn = message.local && site_.machines.is_crowded(static_cast<int>(rank))
                                ? model::kTurnSeconds
                                : 0;
        paths_.push_back({route.resources, route.cost.alpha + turn, route.cost.overhead});
      }
      message.route = path->second;
    }
  }
  std::vector<int> senders(site_.routes.resources().size());
  for (const Path& path : paths_) {
    for (const int resource : path.resources) ++senders[static_cast<size_t>(resource)];
  }
  for (size_t i = 0; i < senders.size(); ++i) {
    const Routes::Resource& resource = site_.routes.resources()[i];
    const bool congests = resource.kind == Routes::Kind::kIngress && senders[i] > 1;
    rates_.push_back(resource.rate * (congests ? model::incast_share(senders[i]) : 1));
    const bool bursts = Routes::is_network(resource.kind) && std::isfinite(resource.rate);
    bursts_.push_back(bursts ? fabric.burst : 0);
    if (congests) incast_rate_ = std::min(incast_rate_, resource.rate / senders[i]);
  }
  if (unmatched > 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(unmatched) + " receives without a send in " + plans[0].algorithm);
  }
  if (std::ranges::any_of(plans, [](const Plan& plan) { return plan.num_coded > 0; })) {
    count_contributions();
  }
}

// What is copied to a coded block is one contribution; a reduction has those of all its operands.
// Ops come after those whose blocks they read, so of each block the last writer is the one.
void Simulator::count_contributions() {
  constexpr uint32_t kNobody = ~uint32_t{0};
  std::vector<std::vector<uint32_t>> makers(rank_of_.size());  // by op: of its coded sources
  for (size_t rank = 0; rank < plans_.size(); ++rank) {
    std::vector<uint32_t> writer(plans_[rank].num_coded, kNobody);
    for (uint32_t index = first_op_[rank]; index < first_op_[rank + 1]; ++index) {
      const Op& each = op(index);
      for (const Block& source : plans_[rank].sources_of(each)) {
        makers[index].push_back(source.is_coded() ? writer[source.index] : kNobody);
      }
      if (each.kind != OpKind::kSend && each.destination.is_coded()) {
        writer[each.destination.index] = index;
      }
    }
  }
  std::vector<uint32_t> known(rank_of_.size());
  const auto count = [&](const auto& self, uint32_t index) -> uint32_t {
    if (known[index] > 0) return known[index];
    uint32_t sum = 0;
    if (op(index).kind == OpKind::kRecv) {
      sum = self(self, send_of_[index]);
    } else {
      for (const uint32_t maker : makers[index]) sum += maker == kNobody ? 1 : self(self, maker);
    }
    return known[index] = sum;
  };
  for (uint32_t index = 0; index < rank_of_.size(); ++index) {
    const Op& each = op(index);
    if (each.kind == OpKind::kRecv) continue;
    if (each.kind == OpKind::kSend) {
      const bool coded = plan_of(index).sources_of(each)[0].is_coded();
      messages_[index].contributions = coded ? count(count, index) : 0;
      continue;
    }
    double& seconds = coding_seconds_[index];
    for (const uint32_t maker : makers[index]) {
      if (maker != kNobody) seconds += 1 / coding_.of(count(count, maker)).decode_rate;
    }
    if (each.destination.is_coded()) seconds += 1 / coding_.of(count(count, index)).encode_rate;
  }
}

double Simulator::selection(const SimulatedCall& call) const {
  if (plans_[0].edges == Edges::kNone) return 0;
  const size_t inputs = plans_[0].collective == Collective::kReduceScatter ? plans_.size() : 1;
  const double seconds = static_cast<double>(call.bytes * inputs) / coding_.select_rate;
  return seconds * site_.machines.most_turns();
}

const Plan& Simulator::plan_of(uint32_t index) const {
  return plans_[rank_of_[index]];
}

const Op& Simulator::op(uint32_t index) const {
  return plan_of(index).ops[index - first_op_[rank_of_[index]]];
}

double Simulator::work(uint32_t index, size_t bytes) const {
  const Op& op = this->op(index);
  const auto count = static_cast<double>(bytes);
  const auto rank = static_cast<int>(rank_of_[index]);
  const double copy_rate = rate_or_unlimited(site_.members.copy_rate_of(rank));
  const double reduce_rate = rate_or_unlimited(site_.members.reduce_rate_of(rank));
  switch (op.kind) {
    case OpKind::kSend: {
      const Message& message = messages_[index];
      const bool is_staged_here = message.local && !message.staged;
      double staging = is_staged_here ? message_bytes(index, bytes) / copy_rate : 0;
      if (message.folded) staging *= model::kFoldedShare;
      return paths_[message.route].overhead + staging;
    }
    case OpKind::kRecv: {
      const Message& message = messages_[send_of_[index]];
      const bool in_place = !message.local || !op.destination.is_part();
      return paths_[message.route].overhead + (in_place ? 0 : count / copy_rate);
    }
    case OpKind::kCopy:
      if (op.destination.is_coded() || plan_of(index).sources_of(op)[0].is_coded()) {
        return count * coding_seconds_[index];
      }
      // Calls with coded edges nearly always have a residual to be added.
      if (op.takes_residual) {
        return plan_of(index).edges == Edges::kNone ? 0 : count / reduce_rate;
      }
      return count / copy_rate;
    case OpKind::kReduce: {
      const auto sources = plan_of(index).sources_of(op);
      const auto coded = static_cast<double>(std::ranges::count_if(sources, &Block::is_coded));
      // Every operand is read once and the sum written once, however many they are; where some are
      // coded, decoding writes it.
      const double passes = op.num_sources - coded + (coded > 0 ? 0 : 1);
      return count * (passes / model::kPasses / reduce_rate + coding_seconds_[index]);
    }
  }
  return 0;
}

double Simulator::message_bytes(uint32_t send, size_t bytes) const {
  return static_cast<double>(bytes) *
         (messages_[send].contributions > 0 ? coding_.of(messages_[send].contributions).ratio : 1);
}

double Simulator::rate(size_t resource, double message_bytes) const {
  return message_bytes > model::kShortBytes ? rates_[resource]
                                            : site_.routes.resources()[resource].rate;
}

double Simulator::bound(const SimulatedCall& call) const {
  const PartLengths lengths(plans_[0], call.slice_bytes);
  std::vector<double> wire(site_.routes.resources().size());
  const std::vector<Machine>& machines = site_.machines.all();
  std::vector<double> cpu(machines.size());
  for (uint32_t i = 0; i < rank_of_.size(); ++i) {
    const Op& each = op(i);
    const size_t bytes = lengths.of(each);
    if (bytes == 0) continue;
    const size_t machine = site_.machines.of(static_cast<int>(rank_of_[i]));
    cpu[machine] += work(i, bytes) / machines[machine].cores;
    if (each.kind != OpKind::kSend) continue;
    const auto& resources = paths_[messages_[i].route].resources;
    for (size_t hop = messages_[i].local ? 1 : 0; hop < resources.size(); ++hop) {
      const auto r = static_cast<size_t>(resources[hop]);
      wire[r] += message_bytes(i, bytes) / rate(r, message_bytes(i, bytes));
    }
  }
  const double slices = static_cast<double>(call.bytes) / static_cast<double>(call.slice_bytes);
  return std::max(*std::max_element(wire.begin(), wire.end()),
                  *std::max_element(cpu.begin(), cpu.end())) *
             slices +
         selection(call);
}

Prediction Simulator::run(const SimulatedCall& call) const {
  return SimulatedRun(*this, call).run();
}

}  // namespace q7x2
