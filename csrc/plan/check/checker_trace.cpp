#include "plan/check/checker_trace.h"

#include <string>

namespace q7x2::checker {
namespace {

constexpr size_t kKeptPlans = 64;

}  // namespace

Trace::Indexed::Indexed(Plan of) : plan(std::move(of)) {
  for (uint32_t id = 0; id < plan.ops.size(); ++id) {
    const Op& op = plan.ops[id];
    if (op.kind == OpKind::kSend) sends.insert({{op.peer, op.message}, id});
  }
}

Trace::Trace(const Schedule& schedule, size_t max_ops)
    : schedule_(schedule),
      header_(schedule.header(0)),
      group_(header_, schedule.contract()),
      plans_(kKeptPlans),
      ops_left_(max_ops) {}

std::shared_ptr<const Trace::Indexed> Trace::find(int rank) {
  if (const auto* known = plans_.find(rank)) return *known;
  if (ops_left_ == 0) return nullptr;
  auto indexed = std::make_shared<const Indexed>(schedule_.project(rank));
  ops_left_ -= std::min(ops_left_, indexed->plan.ops.size());
  return plans_.add(rank, std::move(indexed));
}

std::optional<size_t> Trace::last_write(const Indexed& at, const Read& read) const {
  const size_t wanted = group_.location(read.rank, read.block);
  for (size_t id = read.op; id-- > 0;) {
    const Op& op = at.plan.ops[id];
    if (op.kind != OpKind::kSend && group_.location(read.rank, op.destination) == wanted) return id;
  }
  return std::nullopt;
}

void Trace::add_leaf(int rank, int part, const Read& read) {
  const std::string result = "output part " + std::to_string(part);
  if (read.block.space != Space::kInput && !(group_.is_in_place() && read.block.is_part())) {
    group_.fail(rank, result + " comes from a block of rank " + std::to_string(read.rank) +
                          " that nothing was written to");
  }
  const std::string contribution = "the contribution of rank " + std::to_string(read.rank);
  if (group_.length(read.rank, read.block) != group_.length(rank, Block::output(part))) {
    group_.fail(rank, result + " holds another part of " + contribution);
  }
  if (!group_.contributes(read.rank)) {
    group_.fail(rank, result + " holds the input of rank " + std::to_string(read.rank) +
                          ", which does not contribute");
  }
  if (leaves_.contains(read.rank)) group_.fail(rank, result + " counts " + contribution + " twice");
  leaves_.add(read.rank);
}

void Trace::check_leaves(int rank, int part) const {
  const std::string result = "output part " + std::to_string(part);
  const bool is_reduction = q7x2::is_reduction(group_.collective());
  const int quorum = is_reduction ? group_.contract().quorum : 1;
  if (leaves_.size() < quorum) {
    group_.fail(rank, result + " lacks the contribution of rank " +
                          std::to_string(group_.contributors().first_missing_in(leaves_)));
  }
  if (!is_reduction) return;
  const int finals = group_.contributors().size() > 1 ? 1 : 0;
  if (num_finals_ < finals) group_.fail(rank, result + " has passed no final reduce");
  if (num_finals_ > 1) group_.fail(rank, result + " has passed several final reduces");
}

bool Trace::check(int rank, int part) {
  leaves_ = RankSet(group_.size());
  num_finals_ = 0;
  const auto first = find(rank);
  if (!first) return false;
  group_.hold(rank, first->plan);
  std::vector<Read> reads{{rank, Block::output(part), first->plan.ops.size()}};
  while (!reads.empty()) {
    const Read read = reads.back();
    reads.pop_back();
    const auto at = find(read.rank);
    if (!at) return false;
    group_.hold(read.rank, at->plan);
    if (const auto writer = last_write(*at, read)) {
      const Op& op = at->plan.ops[*writer];
      num_finals_ += op.is_final ? 1 : 0;
      if (op.kind == OpKind::kRecv) {
        const auto sender = find(op.peer);
        if (!sender) return false;
        const auto send = sender->sends.find({read.rank, op.message});
        if (send == sender->sends.end()) {
          group_.fail(read.rank, *writer, "waits for a message that nobody sends");
        }
        const Op& sent = sender->plan.ops[send->second];
        reads.push_back({op.peer, sender->plan.sources_of(sent)[0], send->second});
      }
      for (const Block& source : at->plan.sources_of(op)) {
        reads.push_back({read.rank, source, *writer});
      }
    } else {
      add_leaf(rank, part, read);
    }
    if (read.rank != rank) group_.release(read.rank);
  }
  check_leaves(rank, part);
  return true;
}

}  // namespace q7x2::checker
