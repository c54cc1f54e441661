// What compressed collectives keep: residuals are added, none is lost, and where parts begin
// changes none of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coded_cases.h"
#include "comm.h"
#include "kernels/codec/codec.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::all_reduce_call;
using test::buffer;
using test::Comm;
using test::digest;
using test::distance;
using test::expect_equal_on_all;
using test::kept_normal;
using test::kept_sum;
using test::normal;
using test::Rank;
using test::region;
using test::run_ranks;
using test::sum_of;

// The input is only read, and what was owed is in the result, however the parts travel.
TEST(CodedCollective, ResidualsAreAddedAndTheInputStays) {
  run_ranks(4, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank / 2).c_str(), 1);
    const auto group = rank.group();
    Comm comm(group);
    const int n = comm.size();
    constexpr size_t kCount = 70'001;
    for (const auto& [algorithm, wish] :
         std::vector<std::pair<std::string, EdgeWish>>{{"hierarchical", EdgeWish::kHost},
                                                       {"sra", EdgeWish::kHost},
                                                       {"sra", EdgeWish::kAll},
                                                       {"ring", EdgeWish::kRack}}) {
      for (const std::string codec : {"int8", "topk:0.2"}) {
        const std::string key = algorithm + ", " + to_string(wish) + ", " + codec;
        rank.at(key);
        struct Memory {
          std::vector<std::vector<float>> input;
          std::vector<float> output, errors;
        };
        const auto memory = std::make_shared<Memory>();
        for (int to = 0; to < n; ++to) memory->input.push_back(kept_normal(rank.rank, to, kCount));
        memory->output.resize(kCount);
        memory->errors.assign(kCount * static_cast<size_t>(n), static_cast<float>(1 + rank.rank));
        CollectiveCall call;
        call.collective = Collective::kReduceScatter;
        call.dtype = DType::kFloat32;
        call.algorithms = algorithm;
        call.coding.codec = Codec::make(codec);
        call.coding.edges = wish;
        for (int to = 0; to < n; ++to) {
          call.input.push_back(region(memory->input[static_cast<size_t>(to)]));
          call.coding.errors.push_back(memory->errors.data() + kCount * static_cast<size_t>(to));
        }
        call.output = {region(memory->output)};
        const auto before = memory->input;
        comm.succeed(*comm.start(std::move(call), memory));
        EXPECT_TRUE(memory->input == before) << key;
        // What all ranks owe now for this rank's part, and what it has received.
        const auto owed = std::make_shared<std::vector<float>>(memory->errors);
        comm.succeed(*comm.flat(Collective::kAllReduce, owed, DType::kFloat32));
        std::vector<double> expected = kept_sum(n, rank.rank, kCount);
        std::vector<float> accounted = memory->output;
        for (size_t i = 0; i < kCount; ++i) {
          expected[i] += 1 + 2 + 3 + 4;
          accounted[i] += (*owed)[kCount * static_cast<size_t>(rank.rank) + i];
        }
        EXPECT_LT(distance(accounted, expected), 2e-6) << key;
      }
    }
  });
}

// What the result lacks is in the errors of some rank, step by step and in the end.
TEST(CodedCollective, WhatIsLostIsKept) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    constexpr size_t kCount = 5'003;
    for (const std::string codec : {"fp16", "int8", "int4:sr", "ternary", "onebit", "fp8_e5m2",
                                    "topk:0.01", "topk:0.1:reselect+int8"}) {
      for (const int divisor : {1, 3}) {
        std::vector<float> errors(kCount);
        std::vector<double> given(kCount);
        std::vector<double> sent(kCount);
        for (int step = 0; step < 20; ++step) {
          const auto data = buffer<float>(kCount);
          *data = normal(rank.rank, 0, kCount, step);
          const auto sum = sum_of(comm.size(), 0, kCount, step);
          CollectiveCall call = all_reduce_call(*data, codec);
          call.divisor = divisor;
          call.coding.errors = {errors.data()};
          call.coding.keys = {static_cast<uint64_t>(step),
                              static_cast<uint64_t>(step * 8 + rank.rank)};
          const auto task = comm.start(std::move(call), data);
          comm.succeed(*task);
          for (size_t i = 0; i < kCount; ++i) {
            given[i] += sum[i];
            sent[i] += double{(*data)[i]} * divisor;
          }
        }
        // All ranks' errors together, by a plain all-reduce.
        const auto owed = std::make_shared<std::vector<float>>(errors);
        comm.succeed(*comm.flat(Collective::kAllReduce, owed, DType::kFloat32));
        std::vector<float> accounted(kCount);
        for (size_t i = 0; i < kCount; ++i) {
          accounted[i] = static_cast<float>(sent[i] + double{(*owed)[i]});
        }
        EXPECT_LT(distance(accounted, given), 2e-6) << codec << ", divisor " << divisor;
      }
    }
  });
}

/// Most large elements lie in a few places, not quite the same on all ranks.
std::vector<float> clustered(int from, size_t count, int step = 0) {
  std::vector<float> values = normal(from, 0, count, step);
  for (size_t i = 0; i < count; ++i) {
    if (i * 20 / count == 3 || i % 30'000 < 700) values[i] *= 50;
  }
  return values;
}

/// (ranks, ranks a host)
class BalancedParts : public ::testing::TestWithParam<std::tuple<int, int>> {};

// Where parts begin changes nothing in what is sent, added and kept, unless ranks of a host add up
// first: then who leads decides what of their sum is sent.
TEST_P(BalancedParts, GiveTheSameResult) {
  const auto [ranks, ranks_per_host] = GetParam();
  run_ranks(ranks, [ranks_per_host = ranks_per_host](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank / ranks_per_host).c_str(), 1);
    const auto group = rank.group();
    Comm comm(group);
    for (const std::string codec : {"topk:0.01", "sampled:0.01", "threshold:60"}) {
      for (const size_t count : {0, 1, 20'000, 70'007}) {
        const std::string key = codec + ", " + std::to_string(count) + " elements";
        rank.at(key);
        const auto run = [&](const std::string& name) {
          const auto data = buffer<float>(count);
          std::vector<float> errors(count);
          for (int step = 0; step < 2; ++step) {
            *data = clustered(rank.rank, count, step);
            CollectiveCall call = all_reduce_call(*data, name, "sra");
            call.coding.errors = {errors.data()};
            call.coding.keys.shared = static_cast<uint64_t>(step);
            comm.succeed(*comm.start(std::move(call), data));
          }
          return std::pair(*data, errors);
        };
        const auto balanced = run(codec + ":balanced");
        EXPECT_TRUE(balanced == run(codec)) << key;
        expect_equal_on_all(rank, key, digest(balanced.first));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OneHost, BalancedParts,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5),
                                            ::testing::Values(5)));
INSTANTIATE_TEST_SUITE_P(ManyHosts, BalancedParts, ::testing::Values(std::tuple(4, 1)));

// Of two hosts with two ranks each and of four hosts. Selected again at the owner are about as many
// as one rank selects.
TEST(CodedCollective, SelectionsOfLongTensorsKeepWhatIsLost) {
  for (const int ranks_per_host : {1, 2}) {
    run_ranks(4, [ranks_per_host](Rank& rank) {
      setenv("Q7X2_HOST_ID", std::to_string(rank.rank / ranks_per_host).c_str(), 1);
      const auto group = rank.group();
      Comm comm(group);
      constexpr size_t kCount = 60'000;
      for (const std::string codec : {"topk:0.01", "topk:0.01:balanced",
                                      "topk:0.01:reselect:balanced", "topk:0.05:balanced+int8"}) {
        std::vector<float> errors(kCount);
        std::vector<double> given(kCount);
        std::vector<double> sent(kCount);
        for (int step = 0; step < 4; ++step) {
          const auto data = buffer<float>(kCount);
          *data = clustered(rank.rank, kCount, step);
          for (int from = 0; from < 4; ++from) {
            const std::vector<float> theirs = clustered(from, kCount, step);
            for (size_t i = 0; i < kCount; ++i) given[i] += theirs[i];
          }
          CollectiveCall call = all_reduce_call(*data, codec);
          call.coding.errors = {errors.data()};
          call.coding.keys.shared = static_cast<uint64_t>(step);
          comm.succeed(*comm.start(std::move(call), data));
          expect_equal_on_all(rank, codec + ", step " + std::to_string(step), digest(*data));
          for (size_t i = 0; i < kCount; ++i) sent[i] += double{(*data)[i]};
          if (codec.find("reselect") != std::string::npos && ranks_per_host == 1) {
            const auto zeros = std::ranges::count(*data, 0.0F);
            EXPECT_NEAR(static_cast<double>(kCount) - static_cast<double>(zeros), 600, 60);
          }
        }
        const auto owed = std::make_shared<std::vector<float>>(errors);
        comm.succeed(*comm.flat(Collective::kAllReduce, owed, DType::kFloat32));
        std::vector<float> accounted(kCount);
        for (size_t i = 0; i < kCount; ++i) {
          accounted[i] = static_cast<float>(sent[i] + double{(*owed)[i]});
        }
        EXPECT_LT(distance(accounted, given), 2e-6) << codec;
      }
    });
  }
}

// Ranks of a host give a leader what they owe with what they have. Here they have nothing else.
TEST(CodedCollective, ResidualsReachTheLeadersOfAHost) {
  run_ranks(4, [](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank / 2).c_str(), 1);
    const auto group = rank.group();
    Comm comm(group);
    for (const std::string codec : {"int8", "topk:0.2"}) {
      for (const size_t count : {5'003, 300'007}) {
        const std::string key = codec + ", " + std::to_string(count) + " elements";
        rank.at(key);
        const std::vector<double>& given = kept_sum(comm.size(), 0, count);
        std::vector<float> errors = kept_normal(rank.rank, 0, count);
        std::vector<double> sent(count);
        for (int step = 0; step < 16; ++step) {
          const auto data = buffer<float>(count);
          CollectiveCall call = all_reduce_call(*data, codec, "hierarchical");
          call.coding.errors = {errors.data()};
          comm.succeed(*comm.start(std::move(call), data));
          for (size_t i = 0; i < count; ++i) sent[i] += double{(*data)[i]};
          if (step > 0) continue;
          const auto debtors = buffer<float>(count);
          for (size_t i = 0; i < count; ++i) (*debtors)[i] = errors[i] == 0 ? 0 : 1;
          comm.succeed(*comm.flat(Collective::kAllReduce, debtors, DType::kFloat32));
          EXPECT_LE(std::ranges::max(*debtors), 2) << key << ": more than a leader a host";
        }
        const auto owed = std::make_shared<std::vector<float>>(errors);
        comm.succeed(*comm.flat(Collective::kAllReduce, owed, DType::kFloat32));
        std::vector<float> accounted(count);
        std::vector<float> delivered(count);
        for (size_t i = 0; i < count; ++i) {
          accounted[i] = static_cast<float>(sent[i] + double{(*owed)[i]});
          delivered[i] = static_cast<float>(sent[i]);
        }
        EXPECT_LT(distance(accounted, given), 2e-6) << key;
        EXPECT_LT(distance(delivered, given), 1e-3) << key;
      }
    }
  });
}

}  // namespace
}  // namespace q7x2
