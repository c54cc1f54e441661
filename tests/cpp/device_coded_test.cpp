// Compressed collectives whose elements are on a device, here a thread that does what is enqueued
// later: the bits of the CPU's codecs, and only messages are copied.
#include "executor/residence/device_coded.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/codec.h"
#include "level.h"
#include "thread_device.h"

namespace q7x2::test {
namespace {

/// One call on the host, which brings the Plan, and the same one on the device.
void expect_bits_of_the_cpu(Rank& rank, Comm& comm, DType dtype, const std::string& algorithm,
                            const std::string& codec, size_t count) {
  rank.at(std::string(to_string(dtype)) + " " + algorithm + " " + codec + " " +
          std::to_string(count));
  const auto to_host = std::make_shared<ThreadStream>();
  const auto to_device = std::make_shared<ThreadStream>();
  const auto on_host =
      std::make_shared<Numbers>(dtype, normal(count, static_cast<unsigned>(rank.rank)),
                                normal(count, static_cast<unsigned>(rank.rank + 10), 0.1F));
  const auto on_device = std::make_shared<Numbers>(*on_host);
  comm.succeed(*comm.start(call_on(*on_host, algorithm, codec), on_host));
  comm.succeed(*start_on_device(comm, call_on(*on_device, algorithm, codec), on_device,
                                {to_host, to_device, &kThreadKernels}));
  EXPECT_EQ(on_device->values, on_host->values);
  EXPECT_TRUE(same_bits(on_device->errors, on_host->errors));
  if (codec == "int4" && count > 5000) {
    EXPECT_LT(to_host->copied + to_device->copied, 2 * count * sizeof(float));
  }
}

void expect_bits_of_the_cpu(DType dtype, const std::vector<std::string>& codecs) {
  run_ranks(3, [&](Rank& rank) {
    Comm comm(rank.group());
    for (const std::string algorithm : {"sra", "direct"}) {
      for (const std::string& codec : codecs) {
        for (const size_t count : {1, 5000, at_level(60'001, 300'001)}) {
          expect_bits_of_the_cpu(rank, comm, dtype, algorithm, codec, count);
        }
      }
    }
  });
}

TEST(DeviceCoded, HasTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(DType::kFloat32, {"int4", "bf16", "hadamard+int8", "sign"});
}

TEST(DeviceCoded, HasTheBitsOfTheCpuForShortFloats) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    expect_bits_of_the_cpu(dtype, {"int4", "sign"});
  }
}

// Ranks other than 0 know the Plan only when the call has begun.
TEST(DeviceCoded, FirstCallsHaveTheBitsOfTheCpu) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    for (const EdgeWish edges : {EdgeWish::kAll, EdgeWish::kHost}) {
      for (const size_t count : {1, 5000, at_level(60'001, 300'001)}) {
        rank.at(std::string(to_string(edges)) + " " + std::to_string(count));
        const ResidentDevice device{std::make_shared<ThreadStream>(),
                                    std::make_shared<ThreadStream>(), &kThreadKernels};
        const auto on_device = std::make_shared<Numbers>(
            DType::kFloat32, normal(count, static_cast<unsigned>(rank.rank)),
            normal(count, static_cast<unsigned>(rank.rank + 10), 0.1F));
        const auto on_host = std::make_shared<Numbers>(*on_device);
        const auto call = [&](Numbers& numbers) {
          CollectiveCall made = call_on(numbers, "sra", "int4");
          made.coding.edges = edges;
          return made;
        };
        comm.succeed(*start_on_device(comm, call(*on_device), on_device, device));
        comm.succeed(*comm.start(call(*on_host), on_host));
        EXPECT_EQ(on_device->values, on_host->values);
        EXPECT_TRUE(same_bits(on_device->errors, on_host->errors));
        const size_t copied = dynamic_cast<ThreadStream&>(*device.to_host).copied +
                              dynamic_cast<ThreadStream&>(*device.to_device).copied;
        const size_t elements = 2 * count * sizeof(float);  // and residuals
        if (edges == EdgeWish::kHost) {
          EXPECT_EQ(copied, 2 * elements);  // there and back
        } else if (count > 5000) {
          EXPECT_LT(copied, elements);
        }
      }
    }
  });
}

TEST(DeviceCoded, SaysThatAResultIsNotFinite) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const ResidentDevice device{std::make_shared<ThreadStream>(), std::make_shared<ThreadStream>(),
                                &kThreadKernels};
    for (const bool is_bad : {false, true}) {
      std::vector<float> values(10'000, 1.0F);
      if (is_bad && rank.rank == 1) values[77] = std::numeric_limits<float>::infinity();
      const auto numbers =
          std::make_shared<Numbers>(DType::kFloat32, values, std::vector<float>(10'000, 0.0F));
      CollectiveCall call = call_on(*numbers, "sra", "int4");
      call.coding.refuses_nonfinite = true;
      if (!is_bad) {
        comm.succeed(*comm.start(std::move(call), numbers));
        continue;
      }
      const auto task = start_on_device(comm, std::move(call), numbers, device);
      comm.await(*task);
      ASSERT_TRUE(task->error());
      EXPECT_EQ(task->error()->code(), ErrorCode::kNotFinite);
    }
  });
}

TEST(DeviceCoded, TakesPlansThatSendMessagesOnly) {
  const auto codec = Codec::make("int4");
  Plan plan;
  plan.num_coded = 1;
  const auto runs = [&](OpKind kind, Block destination, std::vector<Block> sources,
                        bool takes_residual = false) {
    Op op;
    op.kind = kind;
    op.destination = destination;
    op.num_sources = static_cast<uint32_t>(sources.size());
    op.takes_residual = takes_residual;
    plan.sources = std::move(sources);
    plan.ops = {op};
    return runs_on_device(plan, *codec, DType::kFloat32, /*has_errors=*/true);
  };
  EXPECT_TRUE(runs(OpKind::kSend, {}, {Block::coded(0)}));
  EXPECT_FALSE(runs(OpKind::kSend, {}, {Block::input(0)}));
  EXPECT_FALSE(runs(OpKind::kRecv, Block::scratch(0), {}));
  EXPECT_TRUE(runs(OpKind::kCopy, Block::coded(0), {Block::input(0)}));
  EXPECT_FALSE(runs(OpKind::kCopy, Block::output(0), {Block::input(0)}));
  const std::vector<Block> both{Block::input(0), Block::coded(0)};
  EXPECT_TRUE(runs(OpKind::kReduce, Block::output(0), both));
  EXPECT_FALSE(runs(OpKind::kReduce, Block::scratch(0), both));
  EXPECT_TRUE(runs(OpKind::kReduce, Block::coded(0), both, /*takes_residual=*/true));
  EXPECT_FALSE(runs(OpKind::kReduce, Block::coded(0), both));

  plan.ops.clear();
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    EXPECT_TRUE(runs_on_device(plan, *codec, dtype, false)) << to_string(dtype);
  }
  EXPECT_FALSE(runs_on_device(plan, *codec, DType::kFloat64, false));
  for (const char* other : {"topk:0.1", "int4+lossless", "sumint8"}) {
    EXPECT_FALSE(runs_on_device(plan, *Codec::make(other), DType::kFloat32, false)) << other;
  }
}

}  // namespace
}  // namespace q7x2::test
