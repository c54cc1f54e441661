// Compressed collectives whose elements are on a device, here a thread that does what is enqueued
// later: the bits of the CPU's codecs, and only messages are copied.
#include "executor/device_coder.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "codec_cases.h"
#include "comm.h"
#include "kernels/codec.h"
#include "kernels/convert.h"
#include "kernels/value_elements.h"
#include "ranks.h"
#include "transport/input_latch.h"

namespace q7x2::test {
namespace {

/// A stream whose device is a thread, and whose kernels are the CPU's.
class ThreadStream final : public WorkStream {
 public:
  ThreadStream() : thread_([this] { run(); }) {}
  ~ThreadStream() override {
    enqueue(nullptr);
    thread_.join();
  }
  void enqueue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    more_.notify_one();
  }

  std::shared_ptr<std::byte> pinned(size_t bytes) override { return memory(bytes); }
  void with(const std::function<void()>& enqueue) override { enqueue(); }
  void* handle() const override { return const_cast<ThreadStream*>(this); }
  const StreamCalls& calls() const override {
    static constexpr StreamCalls calls{
        .size = sizeof(StreamCalls),
        .wait_value = nullptr,
        .call_host =
            [](void* stream, void (*call)(void*), void* argument) {
              static_cast<ThreadStream*>(stream)->enqueue([=] { call(argument); });
              return 0;
            },
        .is_capturing = nullptr,
    };
    return calls;
  }
  // What is dropped stays until the stream has come by.
  std::shared_ptr<std::byte> scratch(size_t bytes) override {
    const std::shared_ptr<std::byte> kept = memory(bytes);
    return {kept.get(), [this, kept](std::byte*) { enqueue([kept] {}); }};
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes, Way) override {
    copied += bytes;
    enqueue([=] { std::memcpy(to, from, bytes); });
  }

  std::atomic<size_t> copied{0};

 private:
  static std::shared_ptr<std::byte> memory(size_t bytes) {
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> next = std::move(work_.front());
      work_.erase(work_.begin());
      if (!next) return;
      lock.unlock();
      next();
    }
  }

  std::mutex mutex_;  // guards the next
  std::vector<std::function<void()>> work_;
  std::condition_variable more_;
  std::thread thread_;  // the last member: it uses the others
};

void enqueue(void* stream, std::function<void()> work) {
  static_cast<ThreadStream*>(stream)->enqueue(std::move(work));
}

void fold_now(const ValueSpec& spec, const Fold& fold, ValueBlock block, const FoldTarget& to) {
  const ValueKernels& cpu = dispatched_value_kernels();
  std::vector<float> sum(block.count, -0.0F);  // to which anything adds without a change
  if (block.add != nullptr) sum.assign(block.add, block.add + block.count);
  for (int n = 0; n < fold.num; ++n) {
    const FoldSource& source = fold.of[n];
    if (source.body != nullptr) {
      cpu.decode(spec, source.body, sum.data(), block.count, block.first, block.shared_key, true);
    } else {
      for (size_t i = 0; i < block.count; ++i) sum[i] += source.values[i];
    }
  }
  for (float& each : sum) each /= fold.divisor;
  if (to.body != nullptr) {
    block.values = sum.data();
    block.add = nullptr;
    cpu.encode(spec, block, to.body);
    return;
  }
  std::copy(sum.begin(), sum.end(), to.values);
  if (block.error != nullptr) std::fill_n(block.error, block.count, 0.0F);
}

constexpr CodecKernels kKernels{
    .size = sizeof(CodecKernels),
    .encode =
        [](const ValueSpec& spec, const ValueBlock& block, std::byte* body, void* stream) {
          enqueue(stream, [=] { dispatched_value_kernels().encode(spec, block, body); });
        },
    .decode =
        [](const ValueSpec& spec, const std::byte* body, float* out, size_t count, uint64_t first,
           uint64_t shared_key, bool add, void* stream) {
          enqueue(stream, [=] {
            dispatched_value_kernels().decode(spec, body, out, count, first, shared_key, add);
          });
        },
    .fold = [](const ValueSpec& spec, const Fold& fold, const ValueBlock& block,
               const FoldTarget& to,
               void* stream) { enqueue(stream, [=] { fold_now(spec, fold, block, to); }); },
    .find_nonfinite =
        [](const float* values, size_t count, uint32_t* found, void* stream) {
          enqueue(stream, [=] {
            if (!std::all_of(values, values + count, is_finite)) *found = 1;
          });
        },
};

/// Elements of some type, and their residuals.
struct Numbers {
  Numbers() = default;
  Numbers(DType of, const std::vector<float>& floats, std::vector<float> residuals)
      : dtype(of), values(floats.size() * element_size(of)), errors(std::move(residuals)) {
    narrow(values.data(), floats.data(), floats.size(), of);
  }

  DType dtype = DType::kFloat32;
  std::vector<std::byte> values;
  std::vector<float> errors;
};

CollectiveCall call_on(Numbers& numbers, const std::string& algorithm, const std::string& codec) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.input = call.output = {region(numbers.values)};
  call.dtype = numbers.dtype;
  call.algorithms = algorithm;
  call.divisor = 3;
  call.coding.codec = Codec::make(codec);
  call.coding.edges = EdgeWish::kAll;
  if (call.coding.codec->traits().keeps_error) call.coding.errors = {numbers.errors.data()};
  call.coding.keys = {.shared = 5, .rounding = 6};
  return call;
}

std::shared_ptr<CollectiveTask> start_on_device(Comm& comm, CollectiveCall call,
                                                std::shared_ptr<void> keep_alive,
                                                const CodingDevice& device) {
  const auto task = comm.make(std::move(call), std::move(keep_alive));
  const auto latch = std::make_shared<InputLatch>(comm.group().runtime().completions());
  task->set_device(latch, device);
  comm.group().runtime().submit(task, /*caller_waits=*/false);
  // What comes before on the stream is the input.
  Completion::post_after(device.to_host->calls(), device.to_host->handle(), latch->arrival());
  return task;
}

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
                                {to_host, to_device, &kKernels}));
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
        for (const size_t count : {1, 5000, 300'001}) {
          expect_bits_of_the_cpu(rank, comm, dtype, algorithm, codec, count);
        }
      }
    }
  });
}

TEST(DeviceCoder, HasTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(DType::kFloat32, {"int4", "bf16", "hadamard+int8", "sign"});
}

TEST(DeviceCoder, HasTheBitsOfTheCpuForShortFloats) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    expect_bits_of_the_cpu(dtype, {"int4", "sign"});
  }
}

// Ranks other than 0 know the Plan only when the call has begun.
TEST(DeviceCoder, FirstCallsHaveTheBitsOfTheCpu) {
  run_ranks(3, [](Rank& rank) {
    Comm comm(rank.group());
    for (const EdgeWish edges : {EdgeWish::kAll, EdgeWish::kHost}) {
      for (const size_t count : {1, 5000, 300'001}) {
        rank.at(std::string(to_string(edges)) + " " + std::to_string(count));
        const CodingDevice device{std::make_shared<ThreadStream>(),
                                  std::make_shared<ThreadStream>(), &kKernels};
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

TEST(DeviceCoder, SaysThatAResultIsNotFinite) {
  run_ranks(2, [](Rank& rank) {
    Comm comm(rank.group());
    const CodingDevice device{std::make_shared<ThreadStream>(), std::make_shared<ThreadStream>(),
                              &kKernels};
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

TEST(DeviceCoder, TakesPlansThatSendMessagesOnly) {
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
