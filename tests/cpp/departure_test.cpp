// Which ranks of a group have left, and which collectives they miss.
#include "transport/group/departure.h"

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

TEST(Departure, AllAreThereAtFirst) {
  const Departure departure(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(departure.has_left(rank));
    EXPECT_FALSE(departure.is_leaving(rank));
  }
  EXPECT_EQ(departure.find_missing(7), -1);
  EXPECT_TRUE(departure.may_complete(7));
}

TEST(Departure, ARankMissesWhatItHasNotBegun) {
  Departure departure(4);
  departure.leave(2, 5);
  departure.leave(1, 9);
  EXPECT_TRUE(departure.has_left(2));
  EXPECT_EQ(departure.find_missing(4), -1);
  EXPECT_EQ(departure.find_missing(5), 2);
  EXPECT_EQ(departure.find_missing(8), 2);
  EXPECT_EQ(departure.find_missing(9), 1) << "the lowest rank is named";
}

TEST(Departure, ARankMissesWhatItHasBegunAndNotEnded) {
  Departure departure(2);
  Unended unended;
  unended.set(0);    // 299
  unended.set(255);  // 44
  departure.leave(1, 300, unended);
  for (const uint64_t number : {44U, 299U, 300U, 1000U}) {
    EXPECT_TRUE(departure.misses(1, number)) << number;
    EXPECT_EQ(departure.find_missing(number), 1) << number;
  }
  for (const uint64_t number : {0U, 43U, 45U, 298U}) {
    EXPECT_FALSE(departure.misses(1, number)) << number;
    EXPECT_EQ(departure.find_missing(number), -1) << number;
  }
  EXPECT_FALSE(departure.misses(0, 1000));
}

// What a goodbye says of collectives that cannot have been begun is not believed.
TEST(Departure, BitsBeforeTheFirstCollectiveMeanNothing) {
  Departure departure(2);
  departure.leave(1, 2, Unended().set());
  EXPECT_EQ(departure.find_missing(0), 1);
  EXPECT_EQ(departure.find_missing(~uint64_t{0}), 1);
}

TEST(Departure, ARankThatIsAboutToLeaveBeginsNothingMore) {
  Departure departure(2);
  departure.announce(1, 3);
  EXPECT_TRUE(departure.is_leaving(1));
  EXPECT_FALSE(departure.has_left(1));
  EXPECT_TRUE(departure.may_complete(2));
  EXPECT_FALSE(departure.may_complete(3));
  EXPECT_EQ(departure.find_missing(3), -1) << "it is still there";
}

TEST(Departure, AGoodbyeOnTwoConnectionsCountsWhenBothAreThere) {
  Departure departure(2);
  EXPECT_TRUE(departure.is_last_goodbye(0, /*comes_twice=*/false));
  EXPECT_FALSE(departure.is_last_goodbye(1, /*comes_twice=*/true));
  EXPECT_TRUE(departure.is_last_goodbye(1, /*comes_twice=*/true));
}

}  // namespace
}  // namespace q7x2
