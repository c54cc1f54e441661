// Coded recursive doubling: pairs of ranks exchange messages of a codec and add them, at distances
// 1, 2, 4 ...
//
//   0: c <-> 1: c'     0, 1: c + c' -> C      0: C <-> 2: C'     everybody: C + C' -> decode
//   2: c <-> 3: c'     2, 3: ...              1: C <-> 3: C'
//
//   steps   log2 p, p the largest power of two that is not above n; 2 more for n > p
//   bytes   a contribution in the first step, sums of 2, 4, ... contributions in the next
//
// Both ranks of a pair add the same two messages in the same order and encode the same sum, so they
// stay bit-identical. A sum is encoded at every step: this is only for codecs that send sums as
// they are, selections above all, whose sums stay short while few ranks have few elements. It takes
// the fewest steps, and wins where the tensor, or what is selected of it, is small. Renggli et al.,
// "SparCML: high-performance sparse communication for machine learning", 2019 (SSAR recursive
// doubling).
#include <bit>

#include "plan/generators.h"

namespace q7x2 {

namespace {

using OpId = PlanBuilder::OpId;

/// Of the n - p ranks beyond the power of two each gives what it has to its left neighbour first,
/// and gets the result from it in the end.
class Builder {
 public:
  explicit Builder(const PlanRequest& request)
      : rank_(request.rank),
        n_(request.world_size),
        core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(request.world_size)))),
        paired_(2 * (n_ - core_)),
        b_(request, "coded_doubling") {}

  Plan build() {
    if (n_ == 1) return b_.build();
    current_ = Block::coded(next_++);
    ready_ = b_.copy(Block::input(0), current_);
    const bool is_paired = rank_ < paired_;
    if (is_paired && rank_ % 2 == 1) {
      const OpId sent = send(rank_ - 1);
      ready_ = b_.recv(rank_ - 1, current_, {{sent}}, Block::input(0));
      b_.copy(current_, Block::output(0), {{ready_}});
      return b_.build();
    }
    if (is_paired) add(receive(rank_ + 1), rank_ + 1, false);
    const int index = is_paired ? rank_ / 2 : rank_ - paired_ / 2;
    for (int distance = 1; distance < core_; distance *= 2) {
      const int other = rank_of(index ^ distance);
      send(other);
      add(receive(other), other, 2 * distance == core_);
    }
    b_.copy(current_, Block::output(0), {{ready_}});
    if (is_paired) send(rank_ + 1);
    return b_.build();
  }

 private:
  struct Received {
    Block block;
    OpId op;
  };

  int rank_of(int index) const { return 2 * index < paired_ ? 2 * index : index + paired_ / 2; }

  OpId send(int to) { return b_.send(to, current_, {{ready_}}, Block::input(0)); }

  Received receive(int from) {
    const Block block = Block::coded(next_++);
    return {block, b_.recv(from, block, {}, Block::input(0))};
  }

  void add(const Received& received, int from, bool is_final) {
    const Block sum = Block::coded(next_++);
    const Block first = rank_ < from ? current_ : received.block;
    const Block second = rank_ < from ? received.block : current_;
    ready_ = b_.reduce({{first, second}}, sum, is_final, {{ready_, received.op}}, Block::input(0));
    current_ = sum;
  }

  const int rank_;
  const int n_;
  const int core_;
  const int paired_;
  int next_ = 0;
  Block current_;
  OpId ready_ = 0;
  PlanBuilder b_;
};

Plan all_reduce(const PlanRequest& request) {
  return Builder(request).build();
}

}  // namespace

std::vector<Generator> coded_doubling_generators() {
  return {{.name = "coded_doubling",
           .collective = Collective::kAllReduce,
           .generate = all_reduce,
           .coded = true,
           .encodes_sums_again = true}};
}

}  // namespace q7x2
