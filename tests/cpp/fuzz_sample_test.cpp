// A sample of what `./dev fuzz` does, in each run of the tests: some thousand inputs per format,
// other ones each time. Without sanitizers it finds crashes, and what the formats themselves
// require.
#include <random>

#include <gtest/gtest.h>

#include "format.h"
#include "level.h"

namespace q7x2::fuzz {
namespace {

const size_t kInputs = test::at_level<size_t>(5'000, 20'000);

class FuzzSample : public ::testing::TestWithParam<Format> {};

TEST_P(FuzzSample, IsReadOrRefused) {
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << '\n';
  const Tally tally = run(GetParam(), seed, kInputs);
  EXPECT_GT(tally.accepted, kInputs / 50) << "with the seed " << seed;
  EXPECT_GT(tally.refused, kInputs / 50) << "with the seed " << seed;
}

std::string name_of(const ::testing::TestParamInfo<Format>& test) {
  std::string name = test.param.name;
  std::erase(name, ' ');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Formats, FuzzSample, ::testing::ValuesIn(formats()), name_of);

}  // namespace
}  // namespace q7x2::fuzz
