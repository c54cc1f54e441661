#include "reference_run.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/types.h"

namespace q7x2 {
namespace {

// A reference executor: runs all ranks of a group in one thread, slice after slice.
class Interpreter {
 public:
  using Buffers = std::vector<std::vector<int64_t>>;  // by part

  /// `inputs[rank]`, `outputs[rank]`: by part. In-place collectives use `outputs` alone.
  Interpreter(const std::vector<Plan>& plans, std::vector<Buffers>& inputs,
              std::vector<Buffers>& outputs)
      : plans_(plans), inputs_(inputs), outputs_(outputs) {}

  void run(size_t slice_length) {
    size_t longest = 0;
    for (const auto* buffers : {&inputs_, &outputs_}) {
      for (const Buffers& parts : *buffers) {
        for (const auto& part : parts) longest = std::max(longest, part.size());
      }
    }
    for (size_t begin = 0; begin < longest; begin += slice_length) run_slice(begin, slice_length);
  }

 private:
  bool is_flat_shape() const { return is_flat(plans_[0].collective); }

  std::span<int64_t> part(int rank, Block block, size_t begin, size_t slice_length) {
    const bool in_place = is_flat_shape() || plans_[0].collective == Collective::kBarrier;
    auto& buffers = block.space == Space::kInput && !in_place ? inputs_ : outputs_;
    auto& parts = buffers[static_cast<size_t>(rank)];
    std::vector<int64_t>& data = parts[is_flat_shape() ? 0 : block.index];
    const size_t slice_begin = std::min(begin, data.size());
    const size_t length = std::min(slice_length, data.size() - slice_begin);
    if (!is_flat_shape()) return {data.data() + slice_begin, length};
    const Plan& plan = plans_[static_cast<size_t>(rank)];
    const size_t from = plan.part_begin(length, block.index);
    const size_t to = plan.part_begin(length, block.index + size_t{1});
    return {data.data() + slice_begin + from, to - from};
  }

  void run_slice(size_t begin, size_t slice_length) {
    using Message = std::tuple<int, int, int>;  // from, to, id
    std::map<Message, std::vector<int64_t>> in_flight;
    std::vector<std::vector<uint32_t>> waits;
    std::vector<std::vector<std::vector<int64_t>>> scratch;
    size_t left = 0;
    for (const Plan& plan : plans_) {
      auto& row = waits.emplace_back();
      for (const Op& op : plan.ops) row.push_back(op.num_dependencies);
      scratch.emplace_back(plan.num_scratch + plan.num_coded,
                           std::vector<int64_t>(slice_length, -999));
      left += plan.ops.size();
    }
    std::vector<std::vector<bool>> done;
    for (const Plan& plan : plans_) done.emplace_back(plan.ops.size());
    while (left > 0) {
      const size_t left_before = left;
      for (int rank = 0; rank < static_cast<int>(plans_.size()); ++rank) {
        const auto r = static_cast<size_t>(rank);
        const Plan& plan = plans_[r];
        for (size_t id = 0; id < plan.ops.size(); ++id) {
          const Op& op = plan.ops[id];
          if (done[r][id] || waits[r][id] > 0) continue;
          const size_t length = part(rank, op.length_of, begin, slice_length).size();
          const auto memory = [&](Block block) {
            if (!block.is_part()) {  // a codec that loses nothing
              const size_t slot = block.index + size_t{block.is_coded() ? plan.num_scratch : 0u};
              return std::span(scratch[r][slot]).first(length);
            }
            return part(rank, block, begin, slice_length);
          };
          if (length > 0) {
            if (op.kind == OpKind::kRecv) {
              const auto message = in_flight.find({op.peer, rank, op.message});
              if (message == in_flight.end()) continue;
              ASSERT_EQ(message->second.size(), length);
              std::ranges::copy(message->second, memory(op.destination).begin());
              in_flight.erase(message);
            } else if (op.kind == OpKind::kSend) {
              const auto source = memory(plan.sources_of(op)[0]);
              ASSERT_EQ(source.size(), length);
              in_flight[{rank, op.peer, op.message}].assign(source.begin(), source.end());
            } else {
              std::vector<int64_t> sum(length);
              for (const Block& source : plan.sources_of(op)) {
                std::ranges::transform(sum, memory(source), sum.begin(), std::plus<>());
              }
              std::ranges::copy(sum, memory(op.destination).begin());
            }
          }
          done[r][id] = true;
          --left;
          for (uint32_t after : plan.successors_of(op)) --waits[r][after];
        }
      }
      ASSERT_LT(left, left_before) << "deadlock";
    }
    EXPECT_TRUE(in_flight.empty());
  }

  const std::vector<Plan>& plans_;
  std::vector<Buffers>& inputs_;
  std::vector<Buffers>& outputs_;
};

// The number at `index` of what rank `from` has for rank `to`.
int64_t number(int from, int to, size_t index) {
  return 1'000'000 * (from + 1) + 10'000 * (to + 1) + static_cast<int64_t>(index);
}

std::vector<int64_t> numbers(int from, int to, size_t length) {
  std::vector<int64_t> data(length);
  for (size_t i = 0; i < length; ++i) data[i] = number(from, to, i);
  return data;
}

std::vector<int64_t> sum_of_numbers(int n, int to, size_t length) {
  std::vector<int64_t> sum(length);
  for (int from = 0; from < n; ++from) {
    for (size_t i = 0; i < length; ++i) sum[i] += number(from, to, i);
  }
  return sum;
}

// Lengths that differ by part, some of them zero, where the collective may be uneven.
size_t uneven_length(size_t longest, int from, int to) {
  const auto step = static_cast<size_t>(3 * from + 5 * to) % 7;
  return longest > step * 4 ? longest - step * 4 : 0;
}

}  // namespace

void run_and_compare(const std::vector<Plan>& plans, size_t length, size_t slice_length) {
  using Buffers = Interpreter::Buffers;
  const Collective op = plans[0].collective;
  const int n = plans[0].world_size;
  const int root = plans[0].root;
  std::vector<Buffers> inputs(plans.size());
  std::vector<Buffers> outputs(plans.size());
  std::vector<Buffers> expected(plans.size());
  for (int rank = 0; rank < n; ++rank) {
    const auto r = static_cast<size_t>(rank);
    Buffers& in = inputs[r];
    Buffers& want = expected[r];
    switch (op) {
      case Collective::kAllReduce:
        outputs[r] = {numbers(rank, 0, length)};
        want = {sum_of_numbers(n, 0, length)};
        break;
      case Collective::kReduce:
        outputs[r] = {numbers(rank, 0, length)};
        want = {rank == root ? sum_of_numbers(n, 0, length) : outputs[r][0]};
        break;
      case Collective::kBroadcast:
        outputs[r] = {numbers(rank, 0, length)};
        want = {numbers(root, 0, length)};
        break;
      case Collective::kAllGather:
      case Collective::kGather:
        in = {numbers(rank, 0, uneven_length(length, rank, 0))};
        for (int from = 0; from < n && (op == Collective::kAllGather || rank == root); ++from) {
          want.push_back(numbers(from, 0, uneven_length(length, from, 0)));
        }
        break;
      case Collective::kReduceScatter:
        for (int to = 0; to < n; ++to)
          in.push_back(numbers(rank, to, uneven_length(length, 0, to)));
        want = {sum_of_numbers(n, rank, uneven_length(length, 0, rank))};
        break;
      case Collective::kAllToAll:
        for (int peer = 0; peer < n; ++peer) {
          in.push_back(numbers(rank, peer, uneven_length(length, rank, peer)));
          want.push_back(numbers(peer, rank, uneven_length(length, peer, rank)));
        }
        break;
      case Collective::kScatter:
        for (int to = 0; to < n && rank == root; ++to) {
          in.push_back(numbers(rank, to, uneven_length(length, 0, to)));
        }
        want = {numbers(root, rank, uneven_length(length, 0, rank))};
        break;
      case Collective::kBarrier:
        outputs[r] = {{7}};
        want = {{7}};
        break;
    }
    if (outputs[r].empty()) {
      for (const auto& part : want) outputs[r].emplace_back(part.size(), -1);
    }
  }
  // Helpers have no buffers: these only say how long those of the ranks are.
  for (size_t helper = static_cast<size_t>(n); helper < plans.size(); ++helper) {
    outputs[helper] = expected[helper] = {std::vector<int64_t>(length, -1)};
  }
  const std::vector<Buffers> inputs_before = inputs;
  Interpreter(plans, inputs, outputs).run(slice_length);
  EXPECT_EQ(outputs, expected);
  EXPECT_EQ(inputs, inputs_before);
}

}  // namespace q7x2
