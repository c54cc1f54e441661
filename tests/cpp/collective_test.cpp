// Collectives between real processes: every algorithm against a naive result, the same bits on all
// ranks, and calls that are refused at once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "plan/algorithms/generators.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::region;
using test::run_ranks;

using Parts = std::vector<std::vector<int32_t>>;

// Nothing, less than a rank each, one slice, several slices; none a multiple of anything.
const std::vector<size_t> kCounts = {0, 1, 3, 1021, 20'483, 300'007};

/// The number at `index` of what `from` has for `to`.
int32_t number(int from, int to, size_t index) {
  return static_cast<int32_t>(1'000'003U * static_cast<uint32_t>(from + 1) +
                              10'007U * static_cast<uint32_t>(to + 1) +
                              31U * static_cast<uint32_t>(index));
}

std::vector<int32_t> numbers(int from, int to, size_t count) {
  std::vector<int32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = number(from, to, i);
  return values;
}

std::vector<int32_t> sums(int ranks, int to, size_t count) {
  std::vector<int32_t> values(count);
  for (int from = 0; from < ranks; ++from) {
    for (size_t i = 0; i < count; ++i) {
      // Unsigned, where wrapping around is defined.
      values[i] = static_cast<int32_t>(static_cast<uint32_t>(values[i]) +
                                       static_cast<uint32_t>(number(from, to, i)));
    }
  }
  return values;
}

/// What a rank puts in, and what it must get.
struct Case {
  Parts input;
  Parts output;
  Parts expected;
  bool in_place = false;  ///< `output` is the input, too
};

Case make_case(Collective collective, int rank, int n, int root, size_t count) {
  const Parts nothing(static_cast<size_t>(n), std::vector<int32_t>(count, -1));
  const auto from_all = [&](int to) {
    Parts parts;
    for (int from = 0; from < n; ++from) parts.push_back(numbers(from, to, count));
    return parts;
  };
  const auto to_all = [&](int from) {
    Parts parts;
    for (int to = 0; to < n; ++to) parts.push_back(numbers(from, to, count));
    return parts;
  };
  switch (collective) {
    case Collective::kAllReduce:
      return {{}, {numbers(rank, 0, count)}, {sums(n, 0, count)}, true};
    case Collective::kReduce:
      return {{},
              {numbers(rank, 0, count)},
              {rank == root ? sums(n, 0, count) : numbers(rank, 0, count)},
              true};
    case Collective::kBroadcast:
      return {{}, {numbers(rank, 0, count)}, {numbers(root, 0, count)}, true};
    case Collective::kAllGather:
      return {{numbers(rank, 0, count)}, nothing, from_all(0)};
    case Collective::kReduceScatter:
      return {to_all(rank), {std::vector<int32_t>(count, -1)}, {sums(n, rank, count)}};
    case Collective::kAllToAll:
      return {to_all(rank), nothing, from_all(rank)};
    case Collective::kGather:
      return {{numbers(rank, 0, count)},
              rank == root ? nothing : Parts{},
              rank == root ? from_all(0) : Parts{}};
    case Collective::kScatter:
      return {rank == root ? to_all(root) : Parts{},
              {std::vector<int32_t>(count, -1)},
              {numbers(root, rank, count)}};
    case Collective::kBarrier:
      break;
  }
  return {};
}

std::vector<Region> regions(Parts& parts) {
  std::vector<Region> all;
  for (auto& part : parts) all.push_back(region(part));
  return all;
}

void check(Comm& comm, const Generator& generator, int parameter, int root, size_t count) {
  const auto memory = std::make_shared<Case>(
      make_case(generator.collective, comm.rank(), comm.size(), root, count));
  const Parts input_before = memory->input;
  CollectiveCall call;
  call.collective = generator.collective;
  call.root = root;
  call.output = regions(memory->output);
  call.input = memory->in_place ? call.output : regions(memory->input);
  call.dtype = DType::kInt32;
  call.algorithms = generator.full_name(parameter);
  const auto task = comm.start(std::move(call), memory);
  comm.succeed(*task);
  EXPECT_EQ(task->algorithm(), generator.full_name(parameter));
  // Not EXPECT_EQ, which would print a million numbers.
  EXPECT_TRUE(memory->output == memory->expected) << task->name() << ", " << generator.name;
  EXPECT_TRUE(memory->input == input_before) << "input changed: " << task->name();
}

/// (ranks, ranks a host): hosts that are told apart send through UCX, the ranks of one through the
/// memory they share.
class EveryAlgorithm : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(EveryAlgorithm, GivesTheNaiveResult) {
  const auto [ranks, ranks_per_host] = GetParam();
  run_ranks(ranks, [ranks_per_host = ranks_per_host](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank / ranks_per_host).c_str(), 1);
    const auto group = rank.group();
    Comm comm(group);
    int root = 0;
    for (const Generator& generator : generators()) {
      const ScheduleRequest request{generator.collective, rank.world_size, 0, &comm.fabric()};
      if (!generator.applies(request)) continue;
      if (generator.collective == Collective::kBarrier) {
        comm.succeed(*comm.barrier());
        continue;
      }
      const std::vector<int> parameters =
          generator.parameters == nullptr ? std::vector{0} : generator.parameters(request);
      for (const int parameter : parameters) {
        for (const size_t count : kCounts) {
          rank.at(generator.full_name(parameter) + " " + to_string(generator.collective) + ", " +
                  std::to_string(count) + " elements");
          root = (root + 1) % rank.world_size;
          check(comm, generator, parameter, is_rooted(generator.collective) ? root : -1, count);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OneHost, EveryAlgorithm,
                         ::testing::Combine(::testing::Range(1, 6), ::testing::Values(5)));
INSTANTIATE_TEST_SUITE_P(ManyHosts, EveryAlgorithm,
                         ::testing::Combine(::testing::Range(2, 5), ::testing::Values(1)));
INSTANTIATE_TEST_SUITE_P(TwoHosts, EveryAlgorithm, ::testing::Values(std::tuple(5, 3)));

TEST(Collective, AllGatherInPlace) {
  run_ranks(3, [](Rank& rank) {
    for (const std::string algorithm : {"direct", "ring"}) {
      Comm comm(rank.group(algorithm), algorithm);
      for (const size_t count : kCounts) {
        const auto memory = std::make_shared<Case>(
            make_case(Collective::kAllGather, rank.rank, rank.world_size, -1, count));
        auto& mine = memory->output[static_cast<size_t>(rank.rank)];
        mine = memory->input[0];
        CollectiveCall call;
        call.collective = Collective::kAllGather;
        call.output = regions(memory->output);
        call.input = {region(mine)};
        comm.succeed(*comm.start(std::move(call), memory));
        EXPECT_TRUE(memory->output == memory->expected) << algorithm << ", " << count;
      }
    }
  });
}

TEST(Collective, AllToAllWithUnevenParts) {
  // Some pairs exchange nothing, some several slices.
  const auto count = [](int from, int to) {
    return static_cast<size_t>((from * 3 + to * 5) % 4) * 60'013;
  };
  run_ranks(4, [&](Rank& rank) {
    for (const std::string algorithm : {"direct", "pairwise"}) {
      Comm comm(rank.group(algorithm), algorithm);
      const auto memory = std::make_shared<Case>();
      for (int other = 0; other < rank.world_size; ++other) {
        memory->input.push_back(numbers(rank.rank, other, count(rank.rank, other)));
        memory->output.emplace_back(count(other, rank.rank), -1);
        memory->expected.push_back(numbers(other, rank.rank, count(other, rank.rank)));
      }
      CollectiveCall call;
      call.collective = Collective::kAllToAll;
      call.input = regions(memory->input);
      call.output = regions(memory->output);
      call.uneven = true;
      const auto task = comm.start(std::move(call), memory);
      comm.succeed(*task);
      EXPECT_EQ(task->algorithm(), algorithm);
      EXPECT_TRUE(memory->output == memory->expected) << algorithm;
    }
  });
}

TEST(Collective, OddNumbersOfBytes) {
  run_ranks(3, [](Rank& rank) {
    for (const std::string algorithm : {"direct", "binomial_tree", "chain"}) {
      Comm comm(rank.group(algorithm), algorithm);
      for (const size_t bytes : {size_t{1}, size_t{65}, size_t{8191}, size_t{700'001}}) {
        const auto data = buffer<uint8_t>(bytes);
        for (size_t i = 0; i < bytes; ++i) {
          (*data)[i] = static_cast<uint8_t>(rank.rank == 2 ? i * 7 : 0);
        }
        comm.succeed(*comm.flat(Collective::kBroadcast, data, DType::kBytes, test::kLong, 2));
        for (size_t i = 0; i < bytes; ++i) ASSERT_EQ((*data)[i], static_cast<uint8_t>(i * 7));
      }
    }
  });
}

TEST(Collective, ReductionsAndMean) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    const auto reduced = [&](ReduceKind kind, int32_t mine) {
      const auto data = buffer<int32_t>(1000, mine);
      comm.succeed(*comm.flat(Collective::kAllReduce, data, DType::kInt32, test::kLong, -1, kind));
      EXPECT_EQ(std::set<int32_t>(data->begin(), data->end()).size(), 1U);
      return data->front();
    };
    const int32_t one_based = rank.rank + 1;
    EXPECT_EQ(reduced(ReduceKind::kSum, one_based), 6);
    EXPECT_EQ(reduced(ReduceKind::kProduct, one_based), 6);
    EXPECT_EQ(reduced(ReduceKind::kMin, -one_based), -3);
    EXPECT_EQ(reduced(ReduceKind::kMax, -one_based), -1);
    EXPECT_EQ(reduced(ReduceKind::kBitAnd, 8 | one_based), 8);
    EXPECT_EQ(reduced(ReduceKind::kBitOr, 1 << rank.rank), 7);
    EXPECT_EQ(reduced(ReduceKind::kBitXor, one_based), 1 ^ 2 ^ 3);

    const auto data = buffer<float>(70'001, static_cast<float>(one_based));
    CollectiveCall call;
    call.collective = Collective::kAllReduce;
    call.input = call.output = {region(*data)};
    call.dtype = DType::kFloat32;
    call.divisor = 3;
    comm.succeed(*comm.start(std::move(call), data));
    EXPECT_TRUE(std::all_of(data->begin(), data->end(), [](float x) { return x == 2.0F; }));
  });
}

/// Bits of `count` floats whose sum depends on the order; also numbers, mostly, as 16-bit floats.
Buffer<uint16_t> random_floats(int rank, DType dtype, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank) + 100);
  std::uniform_real_distribution<float> uniform(-1000, 1000);
  const auto bits = buffer<uint16_t>(count * element_size(dtype) / 2);
  for (size_t i = 0; i < count; ++i) {
    const float value = uniform(random) / static_cast<float>(1 + i % 1000);
    if (dtype == DType::kFloat32) {
      std::memcpy(bits->data() + 2 * i, &value, sizeof(value));
    } else {
      uint32_t wide = 0;
      std::memcpy(&wide, &value, sizeof(wide));
      (*bits)[i] = static_cast<uint16_t>(wide >> 16);  // the upper half of a float is a bfloat16
    }
  }
  return bits;
}

std::string digest(const Buffer<uint16_t>& bits) {
  const std::string_view bytes(reinterpret_cast<const char*>(bits->data()), bits->size() * 2);
  return std::to_string(std::hash<std::string_view>()(bytes));
}

TEST(Collective, AllReduceIsBitIdenticalOnAllRanks) {
  run_ranks(5, [](Rank& rank) {
    const auto group = rank.group();
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::set<std::string> results;
      for (const Generator& generator : generators()) {
        if (generator.collective != Collective::kAllReduce) continue;
        if (accumulates_wider(dtype) && !generator.rounds_once) continue;
        Comm comm(group, generator.name);
        for (const size_t count : {size_t{7}, size_t{50'021}}) {
          const std::string key = generator.name + to_string(dtype) + " " + std::to_string(count);
          rank.at(key);
          const auto run = [&] {
            const auto data = random_floats(rank.rank, dtype, count);
            comm.succeed(*comm.flat(Collective::kAllReduce, data, dtype));
            return digest(data);
          };
          const std::string mine = run();
          EXPECT_EQ(run(), mine) << key << ": not the same a second time";
          rank.put(key, mine);
          for (int other = 0; other < rank.world_size; ++other) {
            EXPECT_EQ(rank.get(other, key), mine) << key << ": differs from rank " << other;
          }
          if (count != 7) results.insert(mine);
        }
      }
      // What rounds once, rounds the same sum.
      EXPECT_TRUE(!accumulates_wider(dtype) || results.size() == 1) << results.size();
    }
  });
}

TEST(Collective, WhatMakesNoSenseIsRefusedAtOnce) {
  run_ranks(1, [](Rank& rank) {
    Comm comm(rank.group());
    const auto refused = [&](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "was not refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      }
    };
    const auto data = buffer<float>(4);
    refused([&] {
      comm.flat(Collective::kAllReduce, data, DType::kFloat32, test::kLong, -1,
                ReduceKind::kBitXor);
    });
    refused([&] { comm.flat(Collective::kAllReduce, data, DType::kBytes); });
    refused([&] { comm.flat(Collective::kBroadcast, data, DType::kBytes, test::kLong, 1); });
    refused([&] { comm.flat(Collective::kBroadcast, data, DType::kBytes, test::kLong, -1); });
    comm.succeed(*comm.flat(Collective::kAllReduce, data, DType::kFloat32));
  });
}

}  // namespace
}  // namespace q7x2
