// After ceil(log2 n) rounds all know all, whatever n is.
#include "transport/bootstrap/dissemination.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

class DisseminationTest : public ::testing::TestWithParam<int> {};

TEST_P(DisseminationTest, AllKnowAll) {
  const int size = GetParam();
  const auto n = static_cast<size_t>(size);
  int rounds = 0;
  while ((1 << rounds) < size) ++rounds;
  std::vector<std::vector<bool>> knows(n, std::vector<bool>(n, false));
  for (size_t r = 0; r < n; ++r) knows[r][r] = true;
  std::vector<size_t> pieces(n, 0);
  std::vector<std::set<int>> receivers(n);
  for (int k = 0; k < rounds; ++k) {
    const std::vector<std::vector<bool>> before = knows;
    for (int rank = 0; rank < size; ++rank) {
      const Dissemination here(rank, size);
      ASSERT_EQ(here.rounds(), rounds);
      const int to = here.to(k);
      ASSERT_EQ(Dissemination(to, size).from(k), rank);
      ASSERT_TRUE(receivers[static_cast<size_t>(rank)].insert(to).second);
      for (int i = 0; i < here.pieces(k); ++i) {
        const auto owner = static_cast<size_t>(here.owner(rank, i));
        ASSERT_TRUE(before[static_cast<size_t>(rank)][owner]) << "a rank sends what it knows";
        ASSERT_FALSE(before[static_cast<size_t>(to)][owner]) << "nothing is sent twice";
        knows[static_cast<size_t>(to)][owner] = true;
        ++pieces[static_cast<size_t>(rank)];
      }
    }
  }
  EXPECT_EQ(Dissemination(0, size).rounds(), rounds);
  for (size_t r = 0; r < n; ++r) {
    EXPECT_EQ(std::count(knows[r].begin(), knows[r].end(), true), size);
    EXPECT_EQ(receivers[r].size(), static_cast<size_t>(rounds));
    EXPECT_EQ(pieces[r], n - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, DisseminationTest,
                         ::testing::Values(1, 2, 3, 4, 5, 6, 7, 12, 64, 65, 1000, 1024, 4096));

}  // namespace
}  // namespace q7x2
