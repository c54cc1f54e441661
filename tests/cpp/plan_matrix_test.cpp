// Every generator at the sizes of real groups: the whole proof up to 64 ranks, samples beyond.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/fabric.h"
#include "plan/algorithms/generators.h"
#include "plan/check/checker.h"
#include "random_fabric.h"

namespace q7x2 {
namespace {

using Fabrics = std::vector<std::pair<std::string, std::optional<Fabric>>>;

/// All values of the parameter. In large groups the first, the last, and one in the middle.
std::vector<int> parameters_of(const Generator& generator, const ScheduleRequest& request) {
  if (generator.parameters == nullptr) return {0};
  const std::vector<int> all = generator.parameters(request);
  if (request.world_size <= 64) return all;
  std::vector<int> some{all.front(), all[all.size() / 2], all.back()};
  some.erase(std::unique(some.begin(), some.end()), some.end());
  return some;
}

// `visit(request)` for the Schedules of one generator on each of the fabrics.
template <typename Visit>
void for_each_request(const Generator& generator, int n, const Fabrics& fabrics, Visit visit) {
  for (const auto& [name, fabric] : fabrics) {
    ScheduleRequest request{generator.collective, n, -1, fabric ? &*fabric : nullptr};
    if (is_rooted(generator.collective)) request.root = n / 3;
    if (!generator.applies(request)) continue;
    for (const int parameter : parameters_of(generator, request)) {
      request.parameter = parameter;
      SCOPED_TRACE(std::to_string(n) + " ranks, " + name + ", " + generator.full_name(parameter));
      visit(request);
    }
  }
}

class MatrixTest : public testing::TestWithParam<size_t> {
 protected:
  const Generator& generator() const { return generators()[GetParam()]; }
};

TEST_P(MatrixTest, ProvenToSixtyFourRanks) {
  for (const int n : {24, 33, 48, 63, 64}) {
    const int on_host = n % 3 == 0 ? 3 : 4;
    const Fabrics fabrics{{"nothing known", std::nullopt},
                          {"alike hosts", Fabric::uniform(n / on_host, on_host, 1e9)},
                          {"hosts at random", random_fabric(n, 1)},
                          {"other hosts at random", random_fabric(n, 2)}};
    for_each_request(generator(), n, fabrics, [&](const ScheduleRequest& request) {
      EXPECT_NO_THROW(check_schedule(generator().generate(request)));
    });
  }
}

TEST_P(MatrixTest, SampledBeyond) {
  for (const int n : {1024, 4096}) {
    const Fabrics fabrics{{"nothing known", std::nullopt},
                          {"alike hosts", Fabric::uniform(n / 8, 8, 1e9)}};
    for_each_request(generator(), n, fabrics, [&](const ScheduleRequest& request) {
      const std::vector<int> ranks{0, n / 2 + 1, n - 1};
      constexpr size_t kOps = 500'000;
      EXPECT_NO_THROW(check_sample(generator().generate(request), ranks, {4, kOps}));
    });
  }
}

std::vector<size_t> all_generators() {
  std::vector<size_t> indices;
  for (size_t i = 0; i < generators().size(); ++i) indices.push_back(i);
  return indices;
}

std::string test_name(const testing::TestParamInfo<size_t>& param) {
  const Generator& generator = generators()[param.param];
  return std::string(to_string(generator.collective)) + "_by_" + generator.name;
}

INSTANTIATE_TEST_SUITE_P(All, MatrixTest, testing::ValuesIn(all_generators()), test_name);

}  // namespace
}  // namespace q7x2
