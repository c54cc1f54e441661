// What a device does for direct calls: the bits of the CPU, for any number of contributions.
#include "executor/residence/direct.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "executor/call/op_job.h"
#include "kernels/cpu/reduce.h"
#include "plan/choose/planner.h"
#include "planning.h"
#include "thread_device.h"

namespace q7x2::test {
namespace {

std::vector<std::vector<std::byte>> contributions(size_t number, size_t count, DType dtype) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<std::byte>> all;
  for (size_t n = 0; n < number; ++n) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    std::vector<std::byte>& bytes = all.emplace_back(count * element_size(dtype));
    narrow(bytes.data(), values.data(), count, dtype);
  }
  return all;
}

class DirectSums : public testing::TestWithParam<DType> {};

TEST_P(DirectSums, HaveTheBitsOfTheCpu) {
  const DType dtype = GetParam();
  constexpr size_t kCount = 1001;
  for (const size_t number :
       {size_t{1}, size_t{2}, size_t{5}, size_t{64}, size_t{65}, size_t{200}}) {
    SCOPED_TRACE(std::to_string(number) + " contributions");
    const auto given = contributions(number, kCount, dtype);
    CollectiveCall call;
    call.dtype = dtype;
    std::pmr::monotonic_buffer_resource memory;
    OpJob job(&memory);
    job.kind = OpJob::Kind::kReduce;
    job.call = &call;
    job.length = kCount * element_size(dtype);
    job.divisor = 3;
    // The sum takes the place of a contribution, as in an all-reduce.
    std::vector<std::byte> sum = given.back();
    for (size_t n = 0; n + 1 < number; ++n) job.addends.push_back(given[n].data());
    job.addends.push_back(sum.data());
    job.to = sum.data();
    std::vector<std::byte> expected(job.length);
    std::vector<const void*> addends;
    for (const auto& each : given) addends.push_back(each.data());
    reduce(expected.data(), addends, kCount, dtype, ReduceKind::kSum, job.divisor);

    const ResidentDevice device = thread_device();
    Direct direct(nullptr, device);
    direct.worker(job.kind)->enqueue(job, kCount);
    await(*device.to_device);
    EXPECT_EQ(sum, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(, DirectSums,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16));

TEST(Direct, AddsWhatKernelsWiden) {
  EXPECT_TRUE(adds_directly(DType::kFloat32, ReduceKind::kSum));
  EXPECT_TRUE(adds_directly(DType::kBFloat16, ReduceKind::kSum));
  EXPECT_FALSE(adds_directly(DType::kBFloat16, ReduceKind::kMax));
  EXPECT_FALSE(adds_directly(DType::kInt32, ReduceKind::kSum));
}

// With slow devices it takes longer, with fast ones it does not: other calls stay as they are.
TEST(Direct, IsPlannedByTheFiguresOfDevices) {
  Fabric fabric = *one_host(4);
  CallShape shape{Collective::kAllReduce, 16 * kMiB};
  const auto seconds = [&](double rate, bool is_direct) {
    fabric.devices.rate = rate;
    shape.is_direct = is_direct;
    return Planner(0, std::make_shared<Fabric>(fabric), "").choose(shape).seconds;
  };
  EXPECT_GT(seconds(1e9, true), 5 * seconds(50e9, true));
  EXPECT_EQ(seconds(1e9, false), seconds(50e9, false));
}

TEST(Direct, ShapesWithAndWithoutAreOfDifferentKinds) {
  CallShape shape{Collective::kBroadcast, 4096, 0};
  const CallKey staged = key_of(shape);
  shape.is_direct = true;
  EXPECT_NE(key_of(shape), staged);
}

}  // namespace
}  // namespace q7x2::test
