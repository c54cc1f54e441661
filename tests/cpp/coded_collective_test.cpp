// Compressed collectives between real processes: every algorithm for them, with codecs of every
// kind, against the exact result.
#include <cmath>
#include <cstddef>
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
#include "kernels/cpu/convert.h"
#include "level.h"
#include "plan/algorithms/generators.h"
#include "plan/ir/coding_pass.h"
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

const std::vector<size_t> kCounts = {0, 1, 3, 1021, 300'007};

/// Generous: what two roundings of normal numbers lose.
double tolerance(const std::string& codec) {
  if (codec == "fp32") return 1e-6;
  if (codec == "threshold:0.001") return 1e-2;
  if (codec == "fp16") return 1e-3;
  if (codec == "int8") return 0.03;
  return 3;
}

std::vector<std::string> codecs() {
  std::vector<std::string> names{"fp32", "int8", "hadamard+int4", "topk:0.1:balanced"};
  if (test::is_nightly()) {
    names.insert(names.end(), {"fp16", "onebit", "topk:0.1", "threshold:0.001"});
  }
  return names;
}

/// (ranks, ranks per host, edges)
class CodedAlgorithm : public ::testing::TestWithParam<std::tuple<int, int, EdgeWish>> {};

TEST_P(CodedAlgorithm, IsCloseToTheExactResultAndEqualOnAllRanks) {
  const auto [ranks, ranks_per_host, edges_wish] = GetParam();
  run_ranks(ranks, [ranks_per_host = ranks_per_host, wish = edges_wish](Rank& rank) {
    setenv("Q7X2_HOST_ID", std::to_string(rank.rank / ranks_per_host).c_str(), 1);
    const auto group = rank.group();
    Comm comm(group);
    const int n = comm.size();
    for (const Generator& generator : generators()) {
      const ScheduleRequest request{generator.collective, n, -1, &comm.fabric()};
      if (generator.codable == Codable::kNever || !generator.applies(request)) continue;
      const int parameter =
          generator.parameters == nullptr ? 0 : generator.parameters(request).back();
      ScheduleRequest wanted = request;
      wanted.parameter = parameter;
      wanted.wants_owners = true;
      const EdgeCoding edges = edge_codings(wish, n, &comm.fabric()).front();
      if (!generator.may_code(edges)) continue;
      const int encodings = encodings_on_the_way(generator.generate(wanted), edges);
      for (const std::string& codec : codecs()) {
        if (encodings > 1 && !Codec::make(codec)->traits().exact_sums) continue;
        std::string digests;  // of all outputs
        for (const size_t count : kCounts) {
          const std::string key = generator.full_name(parameter) + " " +
                                  to_string(generator.collective) + ", " + codec + ", " +
                                  std::to_string(count) + " elements";
          rank.at(key);
          CollectiveCall call;
          call.collective = generator.collective;
          call.dtype = DType::kFloat32;
          call.algorithms = generator.full_name(parameter);
          call.coding.codec = Codec::make(codec);
          call.coding.edges = wish;
          struct Memory {
            std::vector<std::vector<float>> input;
            std::vector<std::vector<float>> output;
          };
          const auto memory = std::make_shared<Memory>();
          std::vector<std::vector<double>> expected;
          switch (generator.collective) {
            case Collective::kAllReduce:
              memory->output = {kept_normal(rank.rank, 0, count)};
              expected = {kept_sum(n, 0, count)};
              break;
            case Collective::kReduceScatter:
              for (int to = 0; to < n; ++to)
                memory->input.push_back(kept_normal(rank.rank, to, count));
              memory->output = {std::vector<float>(count)};
              expected = {kept_sum(n, rank.rank, count)};
              break;
            default:
              memory->input = {kept_normal(rank.rank, 0, count)};
              memory->output.assign(static_cast<size_t>(n), std::vector<float>(count));
              for (int from = 0; from < n; ++from) {
                const auto& values = kept_normal(from, 0, count);
                expected.emplace_back(values.begin(), values.end());
              }
          }
          const auto input_before = memory->input;
          for (auto& part : memory->output) call.output.push_back(region(part));
          for (auto& part : memory->input) call.input.push_back(region(part));
          if (call.input.empty()) call.input = call.output;
          const auto task = comm.start(std::move(call), memory);
          comm.succeed(*task);
          EXPECT_TRUE(memory->input == input_before) << key << ": input changed";
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_LT(distance(memory->output[i], expected[i]), tolerance(codec)) << key;
            digests += digest(memory->output[i]);
          }
        }
        if (generator.collective != Collective::kReduceScatter) {
          const std::string key =
              generator.name + " " + to_string(generator.collective) + " " + codec;
          expect_equal_on_all(rank, key, digest(std::vector<char>(digests.begin(), digests.end())));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OneHost, CodedAlgorithm,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5), ::testing::Values(5),
                                            ::testing::Values(EdgeWish::kAll)));
INSTANTIATE_TEST_SUITE_P(ManyHosts, CodedAlgorithm,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Values(1),
                                            ::testing::Values(EdgeWish::kAll)));
INSTANTIATE_TEST_SUITE_P(TwoHosts, CodedAlgorithm,
                         ::testing::Values(std::tuple(5, 3, EdgeWish::kHost),
                                           std::tuple(4, 2, EdgeWish::kHost),
                                           std::tuple(4, 2, EdgeWish::kAll)));
INSTANTIATE_TEST_SUITE_P(ThreeHosts, CodedAlgorithm,
                         ::testing::Values(std::tuple(6, 2, EdgeWish::kHost),
                                           std::tuple(5, 2, EdgeWish::kHost)));

// Where no edge is coded, a call with a codec gives the bits of one without.
TEST(CodedCollective, TrafficInsideAHostIsExact) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    for (const std::string algorithm : {"", "sra", "ring", "direct", "recursive_doubling"}) {
      for (const size_t count : kCounts) {
        const std::string key = algorithm + ", " + std::to_string(count) + " elements";
        rank.at(key);
        const auto exact = buffer<float>(count);
        *exact = kept_normal(rank.rank, 0, count);
        CollectiveCall dense = all_reduce_call(*exact, "int8", algorithm);
        dense.coding = {};
        comm.succeed(*comm.start(std::move(dense), exact));
        for (const bool has_residual : {false, true}) {
          const auto data = buffer<float>(count);
          *data = kept_normal(rank.rank, 0, count);
          std::vector<float> errors(count);
          CollectiveCall call = all_reduce_call(*data, "topk:0.01", algorithm);
          call.coding.edges = EdgeWish::kHost;
          if (has_residual) call.coding.errors = {errors.data()};
          comm.succeed(*comm.start(std::move(call), data));
          EXPECT_TRUE(has_residual ? distance(*data, {exact->begin(), exact->end()}) < 1e-6
                                   : *data == *exact)
              << key;
        }
      }
    }
  });
}

TEST(CodedCollective, SignsAreAMajorityVote) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    constexpr size_t kCount = 3'000;
    const auto data = buffer<float>(kCount);
    *data = normal(rank.rank, 0, kCount);
    std::vector<int> votes(kCount);
    for (int from = 0; from < 3; ++from) {
      const auto values = normal(from, 0, kCount);
      for (size_t i = 0; i < kCount; ++i) votes[i] += values[i] >= 0 ? 1 : -1;
    }
    comm.succeed(*comm.start(all_reduce_call(*data, "sign"), data));
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ((*data)[i], votes[i] > 0 ? 1.0F : -1.0F) << i;
    }
  });
}

TEST(CodedCollective, EveryFloatType) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    constexpr size_t kCount = 20'011;
    for (const DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      const auto data = buffer<std::byte>(kCount * element_size(dtype));
      const auto values = normal(rank.rank, 0, kCount);
      narrow(data->data(), values.data(), kCount, dtype);
      CollectiveCall call;
      call.collective = Collective::kAllReduce;
      call.input = call.output = {region(*data)};
      call.dtype = dtype;
      call.coding.codec = Codec::make("int8");
      comm.succeed(*comm.start(std::move(call), data));
      std::vector<float> result(kCount);
      widen(result.data(), data->data(), kCount, dtype);
      EXPECT_LT(distance(result, sum_of(3, 0, kCount)), 0.04) << to_string(dtype);
      expect_equal_on_all(rank, to_string(dtype), digest(*data));
    }
  });
}

TEST(CodedCollective, WhatIsNotFiniteReachesEverybody) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    for (const bool refuses : {false, true}) {
      for (const std::string codec : {"fp16", "int8", "onebit", "fp32"}) {
        const auto data = buffer<float>(6'000, 1.0F);
        if (rank.rank == 1) {
          (*data)[10] = INFINITY;
          (*data)[5'999] = NAN;
        }
        CollectiveCall call = all_reduce_call(*data, codec);
        call.coding.refuses_nonfinite = refuses;
        const auto task = comm.start(std::move(call), data);
        if (refuses) {
          EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kNotFinite) << codec;
        } else {
          comm.succeed(*task);
          EXPECT_FALSE(std::isfinite((*data)[10])) << codec;
          EXPECT_FALSE(std::isfinite((*data)[5'999])) << codec;
          EXPECT_NEAR((*data)[3'000], 3, 0.1) << codec;
        }
      }
    }
  });
}

TEST(CodedCollective, RanksThatNameDifferentEdgesGetAnError) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    const auto data = buffer<float>(5'000, 1.0F);
    CollectiveCall call = all_reduce_call(*data, "int8", "sra");
    call.coding.edges = rank.rank == 0 ? EdgeWish::kAll : EdgeWish::kHost;
    const auto task = comm.start(std::move(call), data);
    EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kMismatch);
  });
}

TEST(CodedCollective, RanksThatNameDifferentCodecsGetAnError) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    Comm comm(group);
    const auto data = buffer<float>(5'000, 1.0F);
    const auto task = comm.start(all_reduce_call(*data, rank.rank == 0 ? "int8" : "int4"), data);
    EXPECT_EQ(comm.failure(*task).code(), ErrorCode::kMismatch);
  });
}

}  // namespace
}  // namespace q7x2
