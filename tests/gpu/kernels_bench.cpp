// Codecs' kernels on a GPU beside a device-to-device copy that reads and writes as many bytes. Both
// take turns. Prints a line of JSON per codec and call: medians of seconds, and the copy's over the
// kernel's.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/codec/value_elements.h"
#include "kernels/cuda/codec_cuda.h"

namespace q7x2 {
namespace {

constexpr size_t kCount = size_t{64} << 20;  // numbers: 256 MiB, far more than a cache holds
constexpr int kRounds = 21;
constexpr int kMessages = 3;  // of a fold, beside the owner's own numbers
constexpr int kRanks = 4;     // whose integers are added

const std::vector<std::string> kCodecs = {
    "fp16",          "bf16",          "fp8_e4m3", "int8",      "int6",   "int4",
    "int4:g=32",     "int4:sr",       "int2",     "ternary",   "onebit", "qsgd",
    "hadamard+int8", "hadamard+int4", "sumint8",  "topk:0.01",
};

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { check(cudaMalloc(&pointer_, bytes), "cudaMalloc"); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(pointer_); }

  float* floats() const { return static_cast<float*>(pointer_); }
  std::byte* bytes() const { return static_cast<std::byte*>(pointer_); }

 private:
  void* pointer_ = nullptr;
};

class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  /// Seconds of the default stream between begin and end of `call`.
  double time(const std::function<void()>& call) {
    check(cudaEventRecord(begin_), "cudaEventRecord");
    call();
    check(cudaEventRecord(end_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t begin_{};
  cudaEvent_t end_{};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Call {
  const char* name;
  size_t bytes;  ///< read and written
  std::function<void()> run;
};

/// Numbers between -1 and 1, of many magnitudes.
std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    const float unit = static_cast<float>(state >> 8) * 0x1p-23F - 1;
    value = unit * unit * unit;
  }
  return values;
}

class Bench {
 public:
  Bench()
      : values_(kCount * sizeof(float)),
        error_(kCount * sizeof(float)),
        out_(kCount * sizeof(float)),
        from_(kLargestCopy),
        to_(kLargestCopy) {
    const std::vector<float> host = numbers(kCount);
    check(cudaMemcpy(values_.bytes(), host.data(), kCount * sizeof(float), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    for (const DeviceMemory* memory : {&error_, &out_})
      check(cudaMemset(memory->bytes(), 0, kCount * sizeof(float)), "cudaMemset");
    check(cudaMemset(from_.bytes(), 0, kLargestCopy), "cudaMemset");
  }

  void measure(const std::string& codec) {
    const CodecSpec whole = parse_codec(codec);
    const ValueSpec& spec = whole.value;
    if (whole.select != SelectKind::kAll) {
      measure_selection(codec, whole);
    } else if (spec.kind == ValueKind::kSumInt) {
      measure_integers(codec, spec);
    } else {
      measure_messages(codec, spec);
    }
  }

 private:
  static constexpr size_t kNumbers = kCount * sizeof(float);
  static constexpr size_t kLargestCopy =
      (3 * sizeof(float) + (kMessages + 1) * (sizeof(float) + 1)) * kCount / 2;

  void measure_selection(const std::string& codec, const CodecSpec& spec) {
    const size_t tiles = mark_tiles(kCount) * sizeof(uint32_t);
    const DeviceMemory mask(kCount / 8);
    const DeviceMemory before(tiles);
    const DeviceMemory counts(sizeof(MarkCounts));
    const DeviceMemory scratch(mark_scratch_bytes(kCount));
    const DeviceMemory taken(kNumbers);
    const Marks marks = {kCount, reinterpret_cast<uint64_t*>(mask.bytes()),
                         reinterpret_cast<uint32_t*>(before.bytes())};
    const auto mark = [&](const float* add) {
      mark_cuda(spec, {values_.floats(), add, kCount, 7}, marks,
                reinterpret_cast<MarkCounts*>(counts.bytes()), scratch.bytes(), nullptr);
    };
    mark(nullptr);
    MarkCounts known;
    check(cudaMemcpy(&known, counts.bytes(), sizeof(known), cudaMemcpyDeviceToHost), "cudaMemcpy");
    const size_t sent = known.marked * sizeof(float);
    const size_t passes = 5 * kNumbers;  // of the tensor
    const std::vector<Call> calls = {
        {"mark", passes + kCount / 8, [&] { mark(nullptr); }},
        {"mark with residual", 2 * passes + kCount / 8, [&] { mark(error_.floats()); }},
        {"take with residual", 3 * kNumbers + kCount / 8 + sent,
         [&] {
           take_marked_cuda(marks, values_.floats(), error_.floats(), taken.floats(), nullptr);
         }},
        {"put", kNumbers + kCount / 8 + sent,
         [&] { put_marked_cuda(marks, taken.floats(), out_.floats(), false, nullptr); }},
    };
    for (const Call& call : calls) measure_call(codec, call);
  }

  void measure_integers(const std::string& codec, const ValueSpec& spec) {
    const size_t code_bytes = kCount * spec.bits / 8;
    const int levels = sum_int_levels(spec, kRanks);
    const DeviceMemory codes(code_bytes);
    const DeviceMemory maxima(num_groups(spec, kCount) * sizeof(float));
    SumIntBlock block = {.values = values_.floats(), .count = kCount, .rounding_key = 8};
    SumIntBlock with_residual = block;
    with_residual.errors = error_.floats();
    const std::vector<Call> calls = {
        {"find maxima", kNumbers,
         [&] { group_maxima_cuda(spec, block, maxima.floats(), nullptr); }},
        {"encode", kNumbers + code_bytes,
         [&] {
           encode_sum_int_cuda(spec, levels, block, maxima.floats(), codes.bytes(), nullptr);
         }},
        {"encode with residual", 3 * kNumbers + code_bytes,
         [&] {
           encode_sum_int_cuda(spec, levels, with_residual, maxima.floats(), codes.bytes(),
                               nullptr);
         }},
        {"decode", kNumbers + code_bytes,
         [&] {
           decode_sum_int_cuda(spec, levels, codes.bytes(), maxima.floats(), kRanks, out_.floats(),
                               kCount, nullptr);
         }},
    };
    for (const Call& call : calls) measure_call(codec, call);
  }

  void measure_messages(const std::string& codec, const ValueSpec& spec) {
    const size_t body_bytes = value_bytes(spec, kCount);
    const DeviceMemory bodies((kMessages + 1) * body_bytes);
    ValueBlock block = {
        .values = values_.floats(), .count = kCount, .shared_key = 7, .rounding_key = 8};
    ValueBlock with_residual = block;
    with_residual.add = with_residual.error = error_.floats();
    Fold fold;
    fold.num = kMessages + 1;
    fold.of[0].values = values_.floats();
    for (int n = 0; n < kMessages; ++n) {
      fold.of[n + 1].body = bodies.bytes() + static_cast<size_t>(n) * body_bytes;
      encode_values_cuda(spec, block, bodies.bytes() + static_cast<size_t>(n) * body_bytes,
                         nullptr);
    }
    std::byte* const body = bodies.bytes() + kMessages * body_bytes;
    const std::vector<Call> calls = {
        {"encode", kNumbers + body_bytes, [&] { encode_values_cuda(spec, block, body, nullptr); }},
        {"encode with residual", 3 * kNumbers + body_bytes,
         [&] { encode_values_cuda(spec, with_residual, body, nullptr); }},
        {"decode", kNumbers + body_bytes,
         [&] { decode_values_cuda(spec, body, out_.floats(), kCount, 0, 7, false, nullptr); }},
        {"decode and add", 2 * kNumbers + body_bytes,
         [&] { decode_values_cuda(spec, body, out_.floats(), kCount, 0, 7, true, nullptr); }},
        {"fold of 4", 3 * kNumbers + (kMessages + 1) * body_bytes,
         [&] { fold_values_cuda(spec, fold, with_residual, {.body = body}, nullptr); }},
    };
    for (const Call& call : calls) measure_call(codec, call);
  }

  void measure_call(const std::string& codec, const Call& call) {
    std::vector<double> kernel;
    std::vector<double> copy;
    for (int round = -2; round < kRounds; ++round) {
      const double kernel_seconds = watch_.time(call.run);
      const double copy_seconds = watch_.time([&] {
        check(cudaMemcpyAsync(to_.bytes(), from_.bytes(), call.bytes / 2, cudaMemcpyDeviceToDevice,
                              nullptr),
              "cudaMemcpyAsync");
      });
      if (round < 0) continue;
      kernel.push_back(kernel_seconds);
      copy.push_back(copy_seconds);
    }
    std::printf(
        "{\"codec\": \"%s\", \"call\": \"%s\", \"count\": %zu, \"bytes\": %zu, \"seconds\": %.9f, "
        "\"copy_seconds\": %.9f, \"share\": %.4f}\n",
        codec.c_str(), call.name, kCount, call.bytes, median(kernel), median(copy),
        median(copy) / median(kernel));
    std::fflush(stdout);
  }

  DeviceMemory values_;
  DeviceMemory error_;
  DeviceMemory out_;
  DeviceMemory from_;
  DeviceMemory to_;
  Stopwatch watch_;
};

}  // namespace
}  // namespace q7x2

int main(int argc, char** argv) {
  const std::vector<std::string> named(argv + 1, argv + argc);
  try {
    q7x2::Bench bench;
    for (const std::string& codec : named.empty() ? q7x2::kCodecs : named) bench.measure(codec);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
