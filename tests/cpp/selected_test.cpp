// Compressed collectives with a selection whose elements are on a device, here a thread: the bits
// of calls on the host, and only what is selected is copied.
#include "executor/residence/selected.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "thread_device.h"

namespace q7x2::test {
namespace {

struct ThreadDevice {
  std::shared_ptr<ThreadStream> to_host = std::make_shared<ThreadStream>();
  std::shared_ptr<ThreadStream> to_device = std::make_shared<ThreadStream>();

  ResidentDevice coding() const { return {to_host, to_device, &kThreadKernels}; }
  size_t copied() const { return to_host->copied + to_device->copied; }
};

/// The same call on the host and on a device, twice; returns the bytes that the second one copied.
size_t expect_bits_of_the_host(Comm& comm, const std::string& algorithm, const std::string& codec,
                               const Numbers& numbers) {
  size_t copied = 0;
  for (int i = 0; i < 2; ++i) {
    const ThreadDevice device;
    const auto on_host = std::make_shared<Numbers>(numbers);
    const auto on_device = std::make_shared<Numbers>(numbers);
    // In the first call ranks other than 0 know no Plan.
    comm.succeed(
        *start_on_device(comm, call_on(*on_device, algorithm, codec), on_device, device.coding()));
    comm.succeed(*comm.start(call_on(*on_host, algorithm, codec), on_host));
    EXPECT_EQ(on_device->values, on_host->values) << "call " << i;
    EXPECT_TRUE(same_bits(on_device->errors, on_host->errors)) << "call " << i;
    copied = device.copied();
  }
  return copied;
}

Numbers numbers_of(const Rank& rank, DType dtype, size_t count) {
  return {dtype, normal(count, static_cast<unsigned>(rank.rank)),
          normal(count, static_cast<unsigned>(rank.rank + 10), 0.1F)};
}

void expect_bits_of_the_host(DType dtype, const std::vector<std::string>& codecs) {
  run_ranks(3, [&](Rank& rank) {
    Comm comm(rank.group());
    for (const std::string algorithm : {"sra", "direct"}) {
      for (const std::string& codec : codecs) {
        for (const size_t count : {1, 5000, 300'001}) {
          rank.at(algorithm + " " + codec + " " + std::to_string(count));
          expect_bits_of_the_host(comm, algorithm, codec, numbers_of(rank, dtype, count));
        }
      }
    }
  });
}

TEST(Selected, HasTheBitsOfTheHost) {
  expect_bits_of_the_host(
      DType::kFloat32,
      {"topk:0.01", "topk:0.01:reselect", "topk:0.05+int8", "sampled:0.02+fp16", "threshold:2",
       "randomk:0.1", "randomk:0.1+int4", "nm:1:32", "nm:2:4", "topk:0.01+lossless"});
}

TEST(Selected, HasTheBitsOfTheHostForShortFloats) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    expect_bits_of_the_host(dtype, {"topk:0.01", "topk:0.05+int8"});
  }
}

TEST(Selected, CopiesWhatIsSelected) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr size_t kCount = 300'000;
    const size_t dense = 4 * kCount * sizeof(float);  // with residuals, there and back
    const auto share = [&](const std::string& codec, const Numbers& numbers) {
      rank.at(codec);
      return static_cast<double>(expect_bits_of_the_host(comm, "sra", codec, numbers)) /
             static_cast<double>(dense);
    };
    const Numbers numbers = numbers_of(rank, DType::kFloat32, kCount);
    EXPECT_LT(share("topk:0.01", numbers), 0.03);
    EXPECT_LT(share("topk:0.01+int8", numbers), 0.05);
    EXPECT_LT(share("randomk:0.01", numbers), 0.03);
  });
}

// Then a message of all elements is no longer, and numbers so large leave no error.
TEST(Selected, CopiesAllWhereMessagesNeedThem) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    constexpr size_t kCount = 300'000;
    const std::vector<float> errors = normal(kCount, 5, 0.1F);
    std::vector<float> clustered = normal(kCount, static_cast<unsigned>(rank.rank), 0.01F);
    for (size_t i = 0; i < kCount / 4; ++i) clustered[i] *= 1000;
    std::vector<float> infinite = normal(kCount, 1);
    infinite[77] = std::numeric_limits<float>::infinity();
    std::vector<float> large = normal(kCount, 1);
    large[77] = 66'000;
    const size_t dense = 4 * kCount * sizeof(float);
    const auto expect_all = [&](const std::string& codec, std::vector<float> values) {
      rank.at(codec);
      const Numbers numbers(DType::kFloat32, values, errors);
      EXPECT_GE(expect_bits_of_the_host(comm, "sra", codec, numbers), dense);
    };
    expect_all("topk:0.25", clustered);
    expect_all("topk:0.01", infinite);
    expect_all("randomk:0.01", infinite);
    expect_all("topk:0.01+fp16", large);
    expect_all("topk:0.9", clustered);
  });
}

TEST(Selected, TakesPlansThatSendOnlyWhatIsEncoded) {
  const auto codec = Codec::make("topk:0.01");
  Plan plan;
  plan.num_coded = 1;
  const auto takes = [&](OpKind kind, Block destination, std::vector<Block> sources) {
    Op op;
    op.kind = kind;
    op.destination = destination;
    op.num_sources = static_cast<uint32_t>(sources.size());
    plan.sources = std::move(sources);
    plan.ops = {op};
    return selects_on_device(plan, *codec, DType::kFloat32);
  };
  EXPECT_TRUE(takes(OpKind::kSend, {}, {Block::coded(0)}));
  EXPECT_FALSE(takes(OpKind::kSend, {}, {Block::input(0)}));
  EXPECT_FALSE(takes(OpKind::kRecv, Block::scratch(0), {}));
  EXPECT_TRUE(takes(OpKind::kCopy, Block::coded(0), {Block::input(0)}));
  EXPECT_FALSE(takes(OpKind::kCopy, Block::coded(0), {Block::scratch(0)}));
  EXPECT_FALSE(takes(OpKind::kCopy, Block::output(0), {Block::input(0)}));
  EXPECT_TRUE(takes(OpKind::kReduce, Block::output(0), {Block::input(0), Block::coded(0)}));
  EXPECT_FALSE(takes(OpKind::kReduce, Block::output(0), {Block::input(0), Block::input(1)}));
  EXPECT_FALSE(takes(OpKind::kReduce, Block::scratch(0), {Block::input(0), Block::coded(0)}));

  plan.ops.clear();
  for (const char* other : {"int4", "blocks:0.1", "topk:0.01:balanced", "sumint8"}) {
    EXPECT_FALSE(selects_on_device(plan, *Codec::make(other), DType::kFloat32)) << other;
  }
  EXPECT_FALSE(selects_on_device(plan, *codec, DType::kFloat64));
}

}  // namespace
}  // namespace q7x2::test
