// Dissemination: n ranks tell each other what each of them has, in ceil(log2 n) rounds.
//
//   round 0   each rank sends to the next one            and then knows 2 pieces
//   round 1   each rank sends to the second next one     and then knows 4 pieces
//   round k   each rank sends to rank + 2^k              and then knows 2^(k+1) pieces
//
// A message of round k carries the pieces of its sender and of the 2^k - 1 ranks before it; in the
// last round only those that the receiver lacks. So a rank sends ceil(log2 n) messages, to as many
// others, and n - 1 pieces in all. Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997.
#pragma once

#include <algorithm>
#include <bit>

namespace q7x2 {

class Dissemination {
 public:
  Dissemination(int rank, int size) : rank_(rank), size_(size) {}

  int rounds() const { return std::bit_width(static_cast<unsigned>(size_ - 1)); }
  /// Whom this rank sends to, and whom it receives from.
  int to(int round) const { return (rank_ + distance(round)) % size_; }
  int from(int round) const { return (rank_ - distance(round) + size_) % size_; }
  /// How many pieces a message of the round carries.
  int pieces(int round) const { return std::min(distance(round), size_ - distance(round)); }
  /// Whose piece number `index` of a message from `sender` is.
  int owner(int sender, int index) const { return (sender - index + size_) % size_; }

 private:
  static int distance(int round) { return 1 << round; }

  int rank_;
  int size_;
};

}  // namespace q7x2
