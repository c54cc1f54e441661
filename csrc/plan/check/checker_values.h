// The symbolic values on which the checker runs Plans.
//
// A value is an expression: a leaf is one rank's contribution, an inner node a fold of several.
// Equal expressions share one node, so two ranks hold the same bits if they hold the same node.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "plan/ir/rank_set.h"

namespace q7x2::checker {

/// Identifies a length, equal on all ranks: a message may pass only between blocks with the same
/// identifier. Parts with the same identifier hold the same elements, so it identifies the data
/// too.
using Length = std::pair<int, int>;

constexpr int kUndefined = -1;

struct Node {
  std::vector<int> children;  ///< in the order of the fold; empty for a leaf
  Length data;                ///< which elements of the collective's data
  RankSet contributions;      ///< ranks whose contribution it contains
  RankSet residuals;          ///< ranks whose residual it contains
  int counted_twice = -1;     ///< a rank whose contribution it contains twice; -1: none
  int residual_twice = -1;    ///< a rank whose residual it contains twice; -1: none
  bool is_final = false;      ///< it contains a final reduce
};

/// All expressions of one check, each stored once.
class Expressions {
 public:
  explicit Expressions(int world_size) : world_size_(world_size) {}

  int leaf(int rank, Length data) {
    const auto [entry, is_new] = leaves_.try_emplace({rank, data}, next());
    if (is_new) {
      Node node{.children = {},
                .data = data,
                .contributions = RankSet(world_size_),
                .residuals = RankSet(world_size_)};
      node.contributions.add(rank);
      nodes_.push_back(std::move(node));
    }
    return entry->second;
  }

  int fold(const std::vector<int>& children, bool is_final) {
    const auto [entry, is_new] = folds_.try_emplace({children, is_final}, next());
    if (is_new) {
      Node node{.children = children,
                .data = at(children.front()).data,
                .contributions = RankSet(world_size_),
                .residuals = RankSet(world_size_),
                .is_final = is_final};
      for (const int child : children) {
        const Node& below = at(child);
        if (node.counted_twice < 0) {
          node.counted_twice = node.contributions.first_common(below.contributions);
        }
        if (node.residual_twice < 0) {
          node.residual_twice = below.residual_twice >= 0
                                    ? below.residual_twice
                                    : node.residuals.first_common(below.residuals);
        }
        node.contributions.add(below.contributions);
        node.residuals.add(below.residuals);
      }
      nodes_.push_back(std::move(node));
    }
    return entry->second;
  }

  /// `value` after a codec. Equal only to the same value after the same codec, if both were encoded
  /// as one message.
  int coded(int value) {
    const auto [entry, is_new] = coded_.try_emplace(value, next());
    if (is_new) nodes_.push_back(Node(at(value)));
    return entry->second;
  }

  /// `value` plus the residual of a rank.
  int with_residual(int value, int rank) {
    const auto [entry, is_new] = with_residual_.try_emplace({value, rank}, next());
    if (is_new) {
      Node node = at(value);
      if (node.residuals.contains(rank)) node.residual_twice = rank;
      node.residuals.add(rank);
      nodes_.push_back(std::move(node));
    }
    return entry->second;
  }

  const Node& at(int id) const { return nodes_[static_cast<size_t>(id)]; }

 private:
  int next() const { return static_cast<int>(nodes_.size()); }

  int world_size_;
  std::vector<Node> nodes_;
  std::map<std::pair<int, Length>, int> leaves_;
  std::map<std::pair<std::vector<int>, bool>, int> folds_;
  std::map<int, int> coded_;
  std::map<std::pair<int, int>, int> with_residual_;
};

}  // namespace q7x2::checker
