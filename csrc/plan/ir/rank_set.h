// RankSet: a set of ranks of a group, with one bit per rank.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace q7x2 {

class RankSet {
 public:
  RankSet() = default;
  /// An empty set for a group of `world_size` ranks.
  explicit RankSet(int world_size)
      : words_((static_cast<size_t>(world_size) + kBits - 1) / kBits) {}
  RankSet(int world_size, const std::vector<int>& ranks) : RankSet(world_size) {
    for (const int rank : ranks) add(rank);
  }

  void add(int rank) { words_[word(rank)] |= bit(rank); }
  void add(const RankSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  bool contains(int rank) const { return (words_[word(rank)] & bit(rank)) != 0; }

  int size() const {
    int count = 0;
    for (const uint64_t each : words_) count += std::popcount(each);
    return count;
  }
  /// The first rank that is in both sets; -1: none.
  int first_common(const RankSet& other) const {
    return first([&](size_t i) { return words_[i] & other.words_[i]; });
  }
  /// The first rank that is not in the other set; -1: none.
  int first_missing_in(const RankSet& other) const {
    return first([&](size_t i) { return words_[i] & ~other.words_[i]; });
  }

 private:
  static constexpr size_t kBits = 64;

  static size_t word(int rank) { return static_cast<size_t>(rank) / kBits; }
  static uint64_t bit(int rank) { return uint64_t{1} << static_cast<size_t>(rank) % kBits; }

  template <typename Word>
  int first(const Word& word_at) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (const uint64_t found = word_at(i); found != 0) {
        return static_cast<int>(i * kBits) + std::countr_zero(found);
      }
    }
    return -1;
  }

  std::vector<uint64_t> words_;
};

}  // namespace q7x2
