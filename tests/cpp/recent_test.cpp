#include "base/recent.h"

#include <string>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

TEST(Recent, ForgetsWhatWasNotUsedForLongest) {
  Recent<int, std::string> recent(2);
  recent.add(1, "one");
  recent.add(2, "two");
  ASSERT_NE(recent.find(1), nullptr);
  recent.add(3, "three");
  EXPECT_EQ(recent.find(2), nullptr);
  EXPECT_EQ(*recent.find(1), "one");
  EXPECT_EQ(*recent.find(3), "three");
  EXPECT_EQ(recent.size(), 2U);
  recent.clear();
  EXPECT_EQ(recent.find(1), nullptr);
}

}  // namespace
}  // namespace q7x2
