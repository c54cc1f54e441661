// A device that is a thread: it does enqueued work later, with the CPU's codecs as its kernels.
// Also makes calls on its tensors.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codec_cases.h"
#include "comm.h"
#include "executor/residence/device_coded.h"
#include "executor/residence/selected.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/convert.h"
#include "mark_cases.h"
#include "ranks.h"
#include "transport/task/input_latch.h"

namespace q7x2::test {

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
  // Memory that is released stays allocated until the stream has done its earlier work.
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

  std::mutex mutex_;  // guards the next member
  std::vector<std::function<void()>> work_;
  std::condition_variable more_;
  std::thread thread_;  // the last member: it uses the others
};

inline void enqueue(void* stream, std::function<void()> work) {
  static_cast<ThreadStream*>(stream)->enqueue(std::move(work));
}

/// Waits until the stream has done its earlier work.
inline void await(const WorkStream& stream) {
  std::atomic<bool> is_there = false;
  enqueue(stream.handle(), [&] {
    is_there = true;
    is_there.notify_all();
  });
  is_there.wait(false);
}

inline void fold_now(const ValueSpec& spec, const Fold& fold, ValueBlock block,
                     const FoldTarget& to) {
  const ValueKernels& cpu = dispatched_value_kernels();
  std::vector<float> sum(block.count, -0.0F);  // adding any number to -0 gives that number
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

inline constexpr CodecKernels kThreadKernels{
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
    .mark =
        [](const CodecSpec& spec, const MarkSource& source, const Marks& to, MarkCounts* counts,
           std::byte*, void* stream) {
          enqueue(stream, [=] {
            std::vector<float> sums(source.values, source.values + source.count);
            for (size_t i = 0; source.add != nullptr && i < sums.size(); ++i) {
              sums[i] += source.add[i];
            }
            const MarksOfTheCpu marks = marks_of_the_cpu(spec, sums, source.shared_key);
            std::ranges::copy(marks.mask, to.mask);
            std::ranges::copy(marks.before, to.before);
            *counts = marks.counts;
          });
        },
    .take =
        [](const Marks& marks, const float* values, float* error, float* taken, void* stream) {
          enqueue(stream, [=]() mutable {
            for (size_t i = 0; i < marks.count; ++i) {
              const bool is_marked = (marks.mask[i / 64] >> (i % 64) & 1) != 0;
              const float sum = error == nullptr ? values[i] : values[i] + error[i];
              if (is_marked) *taken++ = sum;
              if (error != nullptr) error[i] = is_marked ? 0 : sum;
            }
          });
        },
    .put =
        [](const Marks& marks, const float* put, float* out, bool add, void* stream) {
          enqueue(stream, [=]() mutable {
            for (size_t i = 0; i < marks.count; ++i) {
              const bool is_marked = (marks.mask[i / 64] >> (i % 64) & 1) != 0;
              if (!add) out[i] = 0;
              if (is_marked) out[i] += *put++;
            }
          });
        },
};

inline ResidentDevice thread_device() {
  return {std::make_shared<ThreadStream>(), std::make_shared<ThreadStream>(), &kThreadKernels};
}

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

inline CollectiveCall call_on(Numbers& numbers, const std::string& algorithm,
                              const std::string& codec) {
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

/// The residence that `launch` chooses for a compressed call.
inline std::unique_ptr<Residence> residence_on(const ResidentDevice& device,
                                               const CollectiveCall& call,
                                               std::shared_ptr<InputLatch> inputs) {
  if (has_kernels_for(*call.coding.codec, call.dtype)) {
    return std::make_unique<DeviceCoded>(std::move(inputs), device);
  }
  return std::make_unique<Selected>(std::move(inputs), device);
}

inline std::shared_ptr<CollectiveTask> start_on_device(Comm& comm, CollectiveCall call,
                                                       std::shared_ptr<void> keep_alive,
                                                       const ResidentDevice& device) {
  const auto latch = std::make_shared<InputLatch>(comm.group().runtime().completions());
  std::unique_ptr<Residence> residence = residence_on(device, call, latch);
  const auto task = comm.make(std::move(call), std::move(keep_alive));
  task->set_residence(std::move(residence));
  comm.group().runtime().submit(task, /*caller_waits=*/false);
  // Earlier work on the stream produces the input.
  Completion::post_after(device.to_host->calls(), device.to_host->handle(), latch->arrival());
  return task;
}

}  // namespace q7x2::test
