#include "plan/check/checker_results.h"

#include <string>
#include <utility>

namespace q7x2::checker {
namespace {

class Results {
 public:
  Results(const CheckedGroup& group, Expressions& expressions, const SymbolicRun& run)
      : group_(group), expressions_(expressions), run_(run) {}

  void check(int rank) {
    const bool receives = group_.receives(rank);
    if (!group_.is_in_place() || !receives) {
      for (int i = 0; i < group_.num_inputs(rank); ++i) {
        expect(rank, Block::input(i), input(rank, i));
      }
    }
    if (!receives) return;
    if (group_.collective() == Collective::kBarrier) {
      check_barrier(rank);
      return;
    }
    for (int i = 0; i < group_.num_outputs(rank); ++i) {
      if (is_reduction(group_.collective())) {
        check_sum(rank, i);
      } else {
        check_copy(rank, i);
      }
    }
  }

 private:
  int input(int rank, int part) {
    return SymbolicRun::input_value(group_, expressions_, rank, part);
  }

  /// The rank and the part of its input that an output part is a copy of.
  std::pair<int, int> origin(int rank, int part) const {
    switch (group_.collective()) {
      case Collective::kBroadcast:
        return {group_.root(), part};
      case Collective::kScatter:
        return {group_.root(), rank};
      case Collective::kAllToAll:
        return {part, rank};
      default:  // all_gather, gather
        return {part, 0};
    }
  }

  void check_copy(int rank, int part) {
    const auto [source, index] = origin(rank, part);
    if (!group_.contributes(source)) {
      expect(rank, Block::output(part), kUndefined);
      return;
    }
    const Plan& plan = group_.plan(rank);
    int value = input(source, index);
    if (plan.takes_residuals) value = expressions_.with_residual(value, source);
    expect(rank, Block::output(part),
           plan.edges == Edges::kNone ? value : expressions_.coded(value));
  }

  void expect(int rank, Block block, int node) const {
    if (run_.value(rank, block) == node) return;
    const bool is_input = block.space == Space::kInput;
    group_.fail(rank, std::string(is_input ? "input" : "output") + " part " +
                          std::to_string(block.index) +
                          (is_input ? " is not what it was" : " is wrong"));
  }

  int first_receiver() const { return group_.contract().receivers.front(); }

  void check_sum(int rank, int part) const {
    const std::string output = "output part " + std::to_string(part);
    const int value = run_.value(rank, Block::output(part));
    if (value == kUndefined) group_.fail(rank, output + " is never written");
    const Node& node = expressions_.at(value);
    if (node.data != group_.length(rank, Block::output(part))) {
      group_.fail(rank, output + " is another part");
    }
    const RankSet& contributors = group_.contributors();
    const int stranger = node.contributions.first_missing_in(contributors);
    if (stranger >= 0) {
      group_.fail(rank, output + " holds the input of rank " + std::to_string(stranger) +
                            ", which does not contribute");
    }
    check_residuals(rank, output, node);
    if (node.contributions.size() < group_.contract().quorum) {
      const int missing = contributors.first_missing_in(node.contributions);
      group_.fail(rank, output + " lacks the contribution of rank " + std::to_string(missing));
    }
    if (contributors.size() > 1) {
      if (!node.is_final) group_.fail(rank, output + " has passed no final reduce");
      if (group_.plan(rank).rounds_once) check_rounds_once(rank, output, node);
    }
    if (group_.collective() == Collective::kAllReduce &&
        value != run_.value(first_receiver(), Block::output(part))) {
      group_.fail(rank, output + " is folded in another order than rank " +
                            std::to_string(first_receiver()) + "'s: replicas would differ");
    }
  }

  /// In calls with a codec each contribution comes with its residual; in other calls there is no
  /// residual.
  void check_residuals(int rank, const std::string& output, const Node& node) const {
    const RankSet none(group_.size());
    const RankSet& expected = group_.plan(rank).takes_residuals ? node.contributions : none;
    int wrong = node.residual_twice;
    if (wrong < 0) wrong = expected.first_missing_in(node.residuals);
    if (wrong < 0) wrong = node.residuals.first_missing_in(expected);
    if (wrong < 0) return;
    const char* times = node.residual_twice >= 0         ? "twice"
                        : node.residuals.contains(wrong) ? "in a call without a codec"
                                                         : "0 times";
    group_.fail(rank, output + " has the residual of rank " + std::to_string(wrong) + " " + times);
  }

  void check_rounds_once(int rank, const std::string& output, const Node& node) const {
    int last = -1;
    for (const int child : node.children) {
      const Node& operand = expressions_.at(child);
      if (!operand.children.empty()) {
        group_.fail(rank, output + " is rounded more than once, against the Plan's claim");
      }
      const int source = operand.contributions.first_common(operand.contributions);
      if (source < last) {
        group_.fail(rank, output + " is not folded in rank order, as a Plan that rounds once must");
      }
      last = source;
    }
  }

  void check_barrier(int rank) const {
    const int silent = group_.contributors().first_missing_in(run_.heard(rank));
    if (silent < 0) return;
    group_.fail(rank, "may leave before rank " + std::to_string(silent) + " has entered");
  }

  const CheckedGroup& group_;
  Expressions& expressions_;
  const SymbolicRun& run_;
};

}  // namespace

void check_results(const CheckedGroup& group, Expressions& expressions, const SymbolicRun& run) {
  Results results(group, expressions, run);
  for (int rank = 0; rank < group.size(); ++rank) results.check(rank);
}

}  // namespace q7x2::checker
