// What one rank finds in its own arguments.
#include "executor/collective/call_check.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr int kRanks = 3;

class CallCheck : public ::testing::Test {
 protected:
  /// Regions of these lengths, one behind the other.
  std::vector<Region> regions(const std::vector<size_t>& lengths) {
    std::vector<Region> made;
    for (const size_t length : lengths) {
      made.push_back({memory_.data() + used_, length});
      used_ += length;
    }
    return made;
  }

  Region at(size_t begin, size_t bytes) { return {memory_.data() + begin, bytes}; }

  CollectiveCall call(Collective collective, std::vector<Region> input, std::vector<Region> output,
                      int root = -1) {
    CollectiveCall made;
    made.collective = collective;
    made.root = root;
    made.input = std::move(input);
    made.output = std::move(output);
    return made;
  }

  static void accepts(const CollectiveCall& made, int rank) {
    EXPECT_NO_THROW(check_call(made, rank, kRanks));
  }

  static void refuses(const CollectiveCall& made, int rank) {
    try {
      check_call(made, rank, kRanks);
      ADD_FAILURE() << to_string(made.collective) << " of rank " << rank << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  size_t used_ = 0;
};

TEST_F(CallCheck, OwnPieces) {
  const auto all_to_all = call(Collective::kAllToAll, regions({1, 2, 3}), regions({7, 2, 4}));
  refuses(all_to_all, 0);
  accepts(all_to_all, 1);
  refuses(all_to_all, 2);
  const auto gather = call(Collective::kAllGather, regions({4}), regions({4, 5, 6}));
  accepts(gather, 0);
  refuses(gather, 1);
  const auto scatter = call(Collective::kReduceScatter, regions({4, 5, 6}), regions({5}));
  refuses(scatter, 0);
  accepts(scatter, 1);
  refuses(call(Collective::kAllReduce, regions({4}), regions({5})), 0);
}

TEST_F(CallCheck, RootsAndTheOthers) {
  accepts(call(Collective::kGather, regions({4}), regions({4, 4, 4}), 1), 1);
  refuses(call(Collective::kGather, regions({4}), regions({4, 5, 4}), 1), 1);
  refuses(call(Collective::kGather, regions({4}), regions({4, 4, 4}), 1), 0);
  accepts(call(Collective::kGather, regions({4}), {}, 1), 0);
  accepts(call(Collective::kScatter, regions({4, 4, 4}), regions({4}), 2), 2);
  refuses(call(Collective::kScatter, regions({4, 4, 5}), regions({4}), 2), 2);
  refuses(call(Collective::kScatter, {}, regions({4}), 2), 2);
  accepts(call(Collective::kScatter, {}, regions({4}), 2), 1);
}

TEST_F(CallCheck, NumbersOfRegions) {
  refuses(call(Collective::kAllToAll, regions({4, 4}), regions({4, 4, 4})), 0);
  refuses(call(Collective::kAllGather, regions({4}), regions({4, 4})), 0);
  refuses(call(Collective::kBroadcast, {}, {}, 0), 0);
}

TEST_F(CallCheck, OnlyTheOwnPartMayBeInPlace) {
  const std::vector<Region> parts = {at(0, 8), at(8, 8), at(16, 8)};
  EXPECT_FALSE(overlaps(call(Collective::kAllGather, {parts[1]}, parts), 1));
  EXPECT_TRUE(overlaps(call(Collective::kAllGather, {parts[0]}, parts), 1));
  EXPECT_TRUE(overlaps(call(Collective::kAllGather, {at(9, 8)}, parts), 1));
  EXPECT_FALSE(overlaps(call(Collective::kReduceScatter, parts, {parts[2]}), 2));
  EXPECT_TRUE(overlaps(call(Collective::kReduceScatter, parts, {parts[2]}), 0));
  EXPECT_TRUE(overlaps(call(Collective::kAllToAll, parts, parts), 0));
  EXPECT_FALSE(overlaps(call(Collective::kAllReduce, {parts[0]}, {parts[0]}), 0));
}

TEST_F(CallCheck, OverlapsAreThoseOfEveryPair) {
  std::mt19937 random(1);
  const auto random_regions = [&] {
    std::vector<Region> made;
    for (int i = 0; i < kRanks; ++i) made.push_back(at(random() % 60, random() % 8));
    return made;
  };
  int found = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto made = call(Collective::kAllToAll, random_regions(), random_regions());
    bool expected = false;
    for (size_t in = 0; in < kRanks; ++in) {
      for (size_t out = 0; out < kRanks; ++out) {
        const Region& a = made.input[in];
        const Region& b = made.output[out];
        const bool is_own = in == 1 && out == 1 && a.data == b.data;
        expected |= !is_own && a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes &&
                    b.data < a.data + a.bytes;
      }
    }
    EXPECT_EQ(overlaps(made, 1), expected);
    found += expected ? 1 : 0;
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 4500);
}

}  // namespace
}  // namespace q7x2
