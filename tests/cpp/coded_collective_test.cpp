// Compressed collectives between real processes: every algorithm for them, with codecs of every
// kind, against the exact result.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "kernels/codec.h"
#include "kernels/convert.h"
#include "plan/coding_pass.h"
#include "plan/generators.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::Buffer;
using test::buffer;
using test::Comm;
using test::Rank;
using test::region;
using test::run_ranks;

const std::vector<size_t> kCounts = {0, 1, 3, 1021, 300'007};

/// The part of `from` for `to` in step `step`.
std::vector<float> normal(int from, int to, size_t count, int step = 0) {
  std::mt19937 engine(static_cast<unsigned>(1 + from + 100 * to + 10'000 * step));
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(engine);
  return values;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// |a - b| / |b|, or, where contributions cancel each other, a contribution's norm.
double distance(const std::vector<float>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / std::max(norm(b), std::sqrt(static_cast<double>(a.size()) + 1));
}

std::vector<double> sum_of(int ranks, int to, size_t count, int step = 0) {
  std::vector<double> sum(count);
  for (int from = 0; from < ranks; ++from) {
    const std::vector<float> values = normal(from, to, count, step);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

/// The same, made once a process: to draw the numbers takes longer than the collectives.
const std::vector<float>& kept_normal(int from, int to, size_t count) {
  static std::map<std::tuple<int, int, size_t>, std::vector<float>> all;
  const auto [kept, is_new] = all.try_emplace({from, to, count});
  if (is_new) kept->second = normal(from, to, count);
  return kept->second;
}

const std::vector<double>& kept_sum(int ranks, int to, size_t count) {
  static std::map<std::pair<int, size_t>, std::vector<double>> all;
  const auto [kept, is_new] = all.try_emplace({to, count});
  if (is_new) kept->second = sum_of(ranks, to, count);
  return kept->second;
}

template <typename T>
std::string digest(const std::vector<T>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(T));
  return std::to_string(std::hash<std::string_view>()(bytes));
}

void expect_equal_on_all(Rank& rank, const std::string& key, const std::string& mine) {
  rank.put(key, mine);
  for (int other = 0; other < rank.world_size; ++other) {
    EXPECT_EQ(rank.get(other, key), mine) << key << ": rank " << other;
  }
}

CollectiveCall all_reduce_call(std::vector<float>& data, const std::string& codec,
                               const std::string& algorithm = "") {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.input = call.output = {region(data)};
  call.dtype = DType::kFloat32;
  call.algorithms = algorithm;
  call.coding.codec = Codec::make(codec);
  return call;
}

/// Generous: what two roundings of normal numbers lose.
double tolerance(const std::string& codec) {
  if (codec == "fp32") return 1e-6;
  if (codec == "threshold:0.001") return 1e-2;
  if (codec == "fp16") return 1e-3;
  if (codec == "int8") return 0.03;
  return 3;
}

/// (ranks, ranks a host, edges)
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
      for (const std::string codec : {"fp32", "fp16", "int8", "onebit", "hadamard+int4", "topk:0.1",
                                      "topk:0.1:balanced", "threshold:0.001"}) {
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
