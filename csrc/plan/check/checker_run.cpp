#include "plan/check/checker_run.h"

#include <algorithm>
#include <string>
#include <utility>

namespace q7x2::checker {
SymbolicRun::SymbolicRun(const CheckedGroup& group, const Matches& matches,
                         Expressions& expressions)
    : group_(group), matches_(matches), expressions_(expressions) {
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<Value> values(group.num_locations(rank));
    for (int part = 0; part < group.num_inputs(rank); ++part) {
      values[static_cast<size_t>(part)] = {input_value(group, expressions, rank, part),
                                           group.length(rank, Block::input(part))};
    }
    values_.push_back(std::move(values));

    const Plan& plan = group.plan(rank);
    const bool listens = plan.collective == Collective::kBarrier;
    const RankSet itself = listens ? RankSet(group.size(), {rank}) : RankSet();
    progress_.push_back({DagWindow(plan, 1, 1), std::vector<State>(plan.ops.size()),
                         std::vector<RankSet>(listens ? plan.ops.size() : 0, itself), itself,
                         std::vector<int>(plan.num_stages, kUndefined)});
  }
}

void SymbolicRun::run() {
  for (int rank = 0; rank < group_.size(); ++rank) {
    progress_[static_cast<size_t>(rank)].dag.admit();
    awake_.push_back(rank);
  }
  while (!awake_.empty()) {
    const int rank = awake_.back();
    awake_.pop_back();
    while (const auto step = progress_[static_cast<size_t>(rank)].dag.next()) start(rank, step->op);
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Progress& progress = progress_[static_cast<size_t>(rank)];
    if (progress.dag.done()) continue;
    const auto stuck = std::ranges::find(progress.states, State::kStarted);
    group_.fail(rank, static_cast<size_t>(stuck - progress.states.begin()),
                "never completes: deadlock");
  }
}

void SymbolicRun::start(int rank, size_t id) {
  const Plan& plan = group_.plan(rank);
  const Op& op = plan.ops[id];
  Progress& progress = progress_[static_cast<size_t>(rank)];
  progress.states[id] = State::kStarted;
  if (op.kind == OpKind::kCopy) {
    const Block source = plan.sources_of(op)[0];
    write(rank, id, made(rank, op, read(rank, id, source)));
    complete(rank, id);
  } else if (op.kind == OpKind::kReduce) {
    write(rank, id, made(rank, op, fold(rank, id)));
    complete(rank, id);
  } else {
    const size_t other = matches_[static_cast<size_t>(rank)][id];
    if (progress_[static_cast<size_t>(op.peer)].states[other] != State::kStarted) return;
    if (op.kind == OpKind::kSend) {
      deliver(rank, id, op.peer, other);
    } else {
      deliver(op.peer, other, rank, id);
    }
  }
}

int SymbolicRun::made(int rank, const Op& op, int value) {
  if (op.takes_residual) value = expressions_.with_residual(value, rank);
  return op.destination.is_coded() ? expressions_.coded(value) : value;
}

void SymbolicRun::deliver(int sender, size_t send, int receiver, size_t receive) {
  const Plan& plan = group_.plan(sender);
  const int value = read(sender, send, plan.sources_of(plan.ops[send])[0]);
  stage(sender, send, value);
  write(receiver, receive, value);
  // A completed send tells nothing about the receiver: it may have been buffered.
  complete(sender, send);
  Progress& progress = progress_[static_cast<size_t>(receiver)];
  if (!progress.heard.empty()) {
    progress.heard[receive].add(progress_[static_cast<size_t>(sender)].heard[send]);
  }
  complete(receiver, receive);
}

void SymbolicRun::complete(int rank, size_t id) {
  const Plan& plan = group_.plan(rank);
  Progress& progress = progress_[static_cast<size_t>(rank)];
  progress.states[id] = State::kComplete;
  if (!progress.heard.empty()) {
    progress.heard_at_end.add(progress.heard[id]);
    for (const uint32_t after : plan.successors_of(plan.ops[id])) {
      progress.heard[after].add(progress.heard[id]);
    }
  }
  progress.dag.complete({0, static_cast<uint32_t>(id)});
  awake_.push_back(rank);
}

int SymbolicRun::read(int rank, size_t id, Block block) const {
  const Value& value = values_[static_cast<size_t>(rank)][group_.location(rank, block)];
  if (value.node == kUndefined) group_.fail(rank, id, "reads a block that nothing was written to");
  if (value.length != group_.length(rank, group_.plan(rank).ops[id].length_of)) {
    group_.fail(rank, id, "reads a block that was written with another length");
  }
  return value.node;
}

void SymbolicRun::write(int rank, size_t id, int node) {
  const Op& op = group_.plan(rank).ops[id];
  values_[static_cast<size_t>(rank)][group_.location(rank, op.destination)] = {
      node, group_.length(rank, op.length_of)};
  if (op.stage != Op::kNoStage) stage(rank, id, node);
}

void SymbolicRun::stage(int rank, size_t id, int node) {
  const uint16_t index = group_.plan(rank).ops[id].stage;
  int& staged = progress_[static_cast<size_t>(rank)].staged[index];
  if (staged != kUndefined && staged != node) {
    group_.fail(rank, id, "has the stage of other bytes");
  }
  staged = node;
}

int SymbolicRun::fold(int rank, size_t id) {
  const Plan& plan = group_.plan(rank);
  const Op& op = plan.ops[id];
  std::vector<int> children;
  for (const Block& source : plan.sources_of(op)) children.push_back(read(rank, id, source));
  for (const int child : children) {
    const Node& node = expressions_.at(child);
    if (node.data != expressions_.at(children.front()).data) {
      group_.fail(rank, id, "folds different elements together");
    }
    if (node.is_final) group_.fail(rank, id, "folds a result that was final already");
  }
  const int result = expressions_.fold(children, op.is_final);
  const Node& node = expressions_.at(result);
  const auto contribution = [](int of) { return "the contribution of rank " + std::to_string(of); };
  if (node.counted_twice >= 0) {
    group_.fail(rank, id, "counts " + contribution(node.counted_twice) + " twice");
  }
  const int stranger = node.contributions.first_missing_in(group_.contributors());
  if (stranger >= 0) {
    group_.fail(
        rank, id,
        "folds the input of rank " + std::to_string(stranger) + ", which does not contribute");
  }
  const int quorum = group_.contract().quorum;
  if (op.is_final && node.contributions.size() < quorum) {
    const int missing = group_.contributors().first_missing_in(node.contributions);
    const bool all = quorum == group_.contributors().size();
    group_.fail(rank, id,
                all ? "is final without " + contribution(missing)
                    : "is final with " + std::to_string(node.contributions.size()) +
                          " contributions, the quorum is " + std::to_string(quorum));
  }
  return result;
}

}  // namespace q7x2::checker
