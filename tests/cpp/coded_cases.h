// Gradients of ranks, their exact sums, and calls that reduce them through a codec.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "kernels/codec/codec.h"
#include "ranks.h"

namespace q7x2::test {

/// Rank `from`'s contribution to the part of rank `to` in step `step`.
inline std::vector<float> normal(int from, int to, size_t count, int step = 0) {
  std::mt19937 engine(static_cast<unsigned>(1 + from + 100 * to + 10'000 * step));
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(engine);
  return values;
}

inline double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// |a - b| / |b|. If contributions cancel each other, the divisor is the norm of a contribution.
inline double distance(const std::vector<float>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / std::max(norm(b), std::sqrt(static_cast<double>(a.size()) + 1));
}

inline std::vector<double> sum_of(int ranks, int to, size_t count, int step = 0) {
  std::vector<double> sum(count);
  for (int from = 0; from < ranks; ++from) {
    const std::vector<float> values = normal(from, to, count, step);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

/// The same, made once per process, because drawing the numbers takes longer than the collectives.
inline const std::vector<float>& kept_normal(int from, int to, size_t count) {
  static std::map<std::tuple<int, int, size_t>, std::vector<float>> all;
  const auto [kept, is_new] = all.try_emplace({from, to, count});
  if (is_new) kept->second = normal(from, to, count);
  return kept->second;
}

inline const std::vector<double>& kept_sum(int ranks, int to, size_t count) {
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

inline void expect_equal_on_all(Rank& rank, const std::string& key, const std::string& mine) {
  rank.put(key, mine);
  for (int other = 0; other < rank.world_size; ++other) {
    EXPECT_EQ(rank.get(other, key), mine) << key << ": rank " << other;
  }
}

inline CollectiveCall all_reduce_call(std::vector<float>& data, const std::string& codec,
                                      const std::string& algorithm = "") {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.input = call.output = {region(data)};
  call.dtype = DType::kFloat32;
  call.algorithms = algorithm;
  call.coding.codec = Codec::make(codec);
  return call;
}

}  // namespace q7x2::test
