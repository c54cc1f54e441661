// Where slices and parts lie: together they are the whole buffer, each byte once and in order.
#include "executor/call/slicing.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/ir/schedule.h"

namespace q7x2 {
namespace {

Choice choice_of(Collective collective, const std::vector<uint32_t>& weights, size_t unit) {
  const size_t total =
      is_flat(collective) ? std::accumulate(weights.begin(), weights.end(), size_t{0}) : 1;
  Choice choice;
  choice.plan = std::make_shared<const Plan>(
      PlanBuilder(Schedule({collective, 3}, "none", weights).header(0)).build());
  choice.slice_bytes = unit * total;
  choice.part_bytes = unit * (is_flat(collective) ? *std::ranges::max_element(weights) : 1);
  return choice;
}

TEST(Slicing, FlatPartsAreTheBufferInOrder) {
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1}, {1, 1, 1}, {2, 1, 5}, {0, 3, 1}}) {
    const Choice choice = choice_of(Collective::kAllReduce, weights, 64);
    for (const size_t elements : {1U, 2U, 7U, 16U, 100U, 1000U}) {
      SCOPED_TRACE(std::to_string(weights.size()) + " parts, " + std::to_string(elements));
      std::vector<std::byte> data(elements * sizeof(float));
      CollectiveCall call;
      call.collective = Collective::kAllReduce;
      call.input = call.output = {{data.data(), data.size()}};
      call.dtype = DType::kFloat32;
      const Slicing slicing(call, choice);
      ASSERT_EQ(slicing.num_slices(), (data.size() + choice.slice_bytes - 1) / choice.slice_bytes);
      const std::byte* next = data.data();
      for (size_t slice = 0; slice < slicing.num_slices(); ++slice) {
        EXPECT_EQ(slicing.bytes_before(slice), slice * choice.slice_bytes);
        for (size_t i = 0; i < weights.size(); ++i) {
          const Block block = Block::output(static_cast<int>(i));
          const Region part = slicing.part(block, slice);
          EXPECT_EQ(part.data, next);
          EXPECT_LE(part.bytes, choice.part_bytes);
          EXPECT_EQ(slicing.first_element(block, slice) * sizeof(float),
                    static_cast<size_t>(next - data.data()));
          next += part.bytes;
        }
      }
      EXPECT_EQ(next, data.data() + data.size());
      EXPECT_EQ(slicing.bytes_before(slicing.num_slices()), data.size());
    }
  }
}

// Elements that share a scale are in one part, so the scale does not depend on the number of ranks.
TEST(Slicing, PartsOfACodedCallBeginWithAGroup) {
  constexpr size_t kGroup = 512;
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1}, {1, 1, 1}, {2, 1, 5}, {0, 3, 1}}) {
    const Choice choice = choice_of(Collective::kAllReduce, weights, 4096);
    for (const size_t elements : {1U, 512U, 513U, 2049U, 5000U, 12345U, 40000U}) {
      SCOPED_TRACE(std::to_string(weights.size()) + " parts, " + std::to_string(elements));
      CollectiveCall call;
      call.collective = Collective::kAllReduce;
      call.input = call.output = {{nullptr, elements * sizeof(float)}};
      call.dtype = DType::kFloat32;
      call.coding.codec = Codec::make("int8:g=512");
      const Slicing slicing(call, choice);
      size_t next = 0;
      for (size_t slice = 0; slice < slicing.num_slices(); ++slice) {
        for (size_t i = 0; i < weights.size(); ++i) {
          const Block block = Block::output(static_cast<int>(i));
          const Region part = slicing.part(block, slice);
          EXPECT_EQ(slicing.first_element(block, slice), next);
          EXPECT_TRUE(next % kGroup == 0 || part.bytes == 0) << next;
          EXPECT_LE(part.bytes, choice.part_bytes);
          next += part.bytes / sizeof(float);
        }
      }
      EXPECT_EQ(next, elements);
    }
  }
}

// Parts of their own lengths: a part that has no k-th chunk is empty there.
TEST(Slicing, BlockedPartsAreCutEachByItself) {
  const Choice choice = choice_of(Collective::kAllToAll, {1}, 64);
  std::vector<std::byte> data(200);
  CollectiveCall call;
  call.collective = Collective::kAllToAll;
  call.input = {{data.data(), 130}, {data.data() + 130, 0}, {data.data() + 130, 70}};
  call.output = {{nullptr, 0}, {nullptr, 0}, {nullptr, 0}};
  const Slicing slicing(call, choice);
  EXPECT_EQ(slicing.num_slices(), 3U);
  EXPECT_EQ(slicing.bytes_before(2), 128U);
  EXPECT_EQ(slicing.bytes_before(3), 130U);
  for (int i = 0; i < 3; ++i) {
    const Block block = Block::input(i);
    const Region& whole = slicing.whole(block);
    size_t bytes = 0;
    for (size_t slice = 0; slice < slicing.num_slices(); ++slice) {
      const Region part = slicing.part(block, slice);
      EXPECT_TRUE(part.bytes == 0 || part.data == whole.data + bytes);
      bytes += part.bytes;
    }
    EXPECT_EQ(bytes, whole.bytes);
  }
}

TEST(Slicing, UnevenCallsHaveASliceEvenIfNothingIsSent) {
  const Choice choice = choice_of(Collective::kAllToAll, {1}, 64);
  CollectiveCall call;
  call.collective = Collective::kAllToAll;
  EXPECT_EQ(Slicing(call, choice).num_slices(), 0U);
  call.uneven = true;
  EXPECT_EQ(Slicing(call, choice).num_slices(), 1U);
}

}  // namespace
}  // namespace q7x2
