// PlanBuilder, and Plans as text.
#include "plan/ir/plan.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace q7x2 {

namespace {

std::string to_string(const Block& block) {
  const char* space = block.space == Space::kInput     ? "in"
                      : block.space == Space::kOutput  ? "out"
                      : block.space == Space::kScratch ? "scratch"
                                                       : "coded";
  return std::string(space) + "[" + std::to_string(block.index) + "]";
}

}  // namespace

PlanBuilder::PlanBuilder(Plan header) : plan_(std::move(header)) {
  next_send_.resize(static_cast<size_t>(plan_.num_members()));
  next_recv_.resize(static_cast<size_t>(plan_.num_members()));
}

uint16_t PlanBuilder::message_to(int peer, std::vector<uint16_t>& counters,
                                 std::optional<int> message) {
  if (peer < 0 || peer >= plan_.num_members() || peer == plan_.rank) {
    throw Error(ErrorCode::kInternal, plan_.algorithm + ": rank " + std::to_string(plan_.rank) +
                                          " cannot exchange messages with rank " +
                                          std::to_string(peer));
  }
  if (!message) message = counters[static_cast<size_t>(peer)]++;
  if (*message >= Plan::kMaxMessages) {
    throw Error(ErrorCode::kInternal, plan_.algorithm + ": more than " +
                                          std::to_string(Plan::kMaxMessages) +
                                          " messages to one peer");
  }
  return static_cast<uint16_t>(*message);
}

PlanBuilder::OpId PlanBuilder::send(int peer, Block source, std::span<const OpId> after,
                                    std::optional<Block> length_of, std::optional<int> message) {
  Op op;
  op.kind = OpKind::kSend;
  op.peer = peer;
  op.message = message_to(peer, next_send_, message);
  return add(op, {&source, 1}, after, length_of);
}

PlanBuilder::OpId PlanBuilder::recv(int peer, Block destination, std::span<const OpId> after,
                                    std::optional<Block> length_of, std::optional<int> message) {
  Op op;
  op.kind = OpKind::kRecv;
  op.peer = peer;
  op.message = message_to(peer, next_recv_, message);
  op.destination = destination;
  return add(op, {}, after, length_of);
}

PlanBuilder::OpId PlanBuilder::copy(Block source, Block destination, std::span<const OpId> after,
                                    std::optional<Block> length_of, bool takes_residual) {
  Op op;
  op.kind = OpKind::kCopy;
  op.takes_residual = takes_residual;
  op.destination = destination;
  return add(op, {&source, 1}, after, length_of);
}

PlanBuilder::OpId PlanBuilder::reduce(std::span<const Block> sources, Block destination,
                                      bool is_final, std::span<const OpId> after,
                                      std::optional<Block> length_of, bool takes_residual) {
  Op op;
  op.kind = OpKind::kReduce;
  op.is_final = is_final;
  op.takes_residual = takes_residual;
  op.destination = destination;
  return add(op, sources, after, length_of);
}

PlanBuilder::OpId PlanBuilder::add(Op op, std::span<const Block> sources,
                                   std::span<const OpId> after, std::optional<Block> length_of) {
  const auto id = static_cast<OpId>(plan_.ops.size());
  std::vector<Block> blocks(sources.begin(), sources.end());
  if (op.kind != OpKind::kSend) blocks.insert(blocks.begin(), op.destination);
  for (const Block& block : blocks) {
    if (block.is_part()) {
      if (!length_of) length_of = block;
    } else {
      uint16_t& slots = block.is_coded() ? plan_.num_coded : plan_.num_scratch;
      slots = std::max(slots, static_cast<uint16_t>(block.index + 1));
    }
  }
  if (!length_of || !length_of->is_part()) {
    throw Error(ErrorCode::kInternal, plan_.algorithm + ": op " + std::to_string(id) +
                                          " has only scratch blocks and no length_of");
  }
  op.length_of = *length_of;
  op.first_source = static_cast<uint32_t>(plan_.sources.size());
  op.num_sources = static_cast<uint32_t>(sources.size());
  plan_.sources.insert(plan_.sources.end(), sources.begin(), sources.end());

  std::vector<OpId> unique(after.begin(), after.end());
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  if (!unique.empty() && unique.back() >= id) {
    throw Error(ErrorCode::kInternal, plan_.algorithm + ": op " + std::to_string(id) +
                                          " waits for an op that comes after it");
  }
  op.num_dependencies = static_cast<uint32_t>(unique.size());
  if (op.kind == OpKind::kSend) {
    const auto [stage, is_new] =
        stages_.try_emplace({sources[0].space, sources[0].index, unique}, plan_.num_stages);
    op.stage = stage->second;
    plan_.num_stages = static_cast<uint16_t>(plan_.num_stages + (is_new ? 1 : 0));
    for (const OpId before : unique) {
      Op& producer = plan_.ops[before];
      const bool can_stage = producer.kind == OpKind::kReduce ||
                             (producer.kind == OpKind::kCopy &&
                              (producer.destination.is_coded() || producer.takes_residual));
      if (can_stage && producer.destination == sources[0]) producer.stage = op.stage;
    }
  }
  plan_.ops.push_back(op);
  after_.push_back(std::move(unique));
  return id;
}

Plan PlanBuilder::build() {
  std::vector<std::vector<uint32_t>> successors(plan_.ops.size());
  for (size_t id = 0; id < after_.size(); ++id) {
    for (OpId before : after_[id]) successors[before].push_back(static_cast<uint32_t>(id));
  }
  for (size_t id = 0; id < successors.size(); ++id) {
    Op& op = plan_.ops[id];
    op.first_successor = static_cast<uint32_t>(plan_.successors.size());
    op.num_successors = static_cast<uint32_t>(successors[id].size());
    plan_.successors.insert(plan_.successors.end(), successors[id].begin(), successors[id].end());
  }
  return std::move(plan_);
}

bool is_flat(Collective op) {
  return op == Collective::kAllReduce || op == Collective::kReduce || op == Collective::kBroadcast;
}

bool is_rooted(Collective op) {
  return op == Collective::kReduce || op == Collective::kBroadcast || op == Collective::kGather ||
         op == Collective::kScatter;
}

bool is_reduction(Collective op) {
  return op == Collective::kAllReduce || op == Collective::kReduce ||
         op == Collective::kReduceScatter;
}

std::string to_string(const Plan& plan, const Op& op) {
  std::ostringstream text;
  switch (op.kind) {
    case OpKind::kSend:
      text << "send #" << op.message << " to " << op.peer;
      break;
    case OpKind::kRecv:
      text << "recv #" << op.message << " from " << op.peer << " -> " << to_string(op.destination);
      break;
    case OpKind::kCopy:
      text << "copy -> " << to_string(op.destination);
      break;
    case OpKind::kReduce:
      text << (op.is_final ? "final reduce -> " : "reduce -> ") << to_string(op.destination);
      break;
  }
  if (op.num_sources > 0) text << " from";
  for (const Block& source : plan.sources_of(op)) text << ' ' << to_string(source);
  if (op.takes_residual) text << " and residual";
  text << ", length of " << to_string(op.length_of);
  return text.str();
}

std::string to_string(const Plan& plan) {
  std::vector<std::vector<size_t>> after(plan.ops.size());
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    for (uint32_t successor : plan.successors_of(plan.ops[id])) after[successor].push_back(id);
  }
  std::ostringstream text;
  text << to_string(plan.collective) << ' ' << plan.algorithm << ", rank " << plan.rank << " of "
       << plan.world_size;
  if (plan.root >= 0) text << ", root " << plan.root;
  if (plan.helpers > 0) text << ", helpers " << plan.helpers;
  text << ", scratch " << plan.num_scratch;
  if (plan.num_coded > 0) text << ", coded " << plan.num_coded;
  if (!plan.part_weights.empty()) {
    text << ", parts";
    for (uint32_t weight : plan.part_weights) text << ' ' << weight;
  }
  if (plan.rounds_once) text << ", rounds once";
  if (plan.takes_residuals) text << ", coded edges: " << to_string(plan.edges);
  text << '\n';
  for (size_t id = 0; id < plan.ops.size(); ++id) {
    text << "  " << id << ": " << to_string(plan, plan.ops[id]);
    if (!after[id].empty()) text << ", after";
    for (size_t before : after[id]) text << ' ' << before;
    text << '\n';
  }
  return text.str();
}

}  // namespace q7x2
