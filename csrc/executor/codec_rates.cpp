#include "executor/codec_rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "kernels/random.h"

namespace q7x2 {
namespace {

constexpr std::array kMeasured = {"fp32", "fp16",    "bf16",   "fp8_e4m3", "fp8_e5m2",
                                  "int8", "int6",    "int4",   "int3",     "int2",
                                  "qsgd", "ternary", "onebit", "sign",     "hadamard+int8"};
// As long as a part of a slice, so that it stays in the caches in which such a part does.
constexpr size_t kCount = size_t{1} << 15;
constexpr int kTimes = 2;

// What a core encodes and decodes a second, in terms of what it copies, where nobody has measured.
constexpr double kEncodeShare = 0.6;
constexpr double kDecodeShare = 1.5;

/// Bytes of fp32 a second: the best of a few, since whatever else runs can only make it slower.
template <class Body>
double rate_of(Body body) {
  double rate = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rate = std::max(rate, kCount * sizeof(float) / std::max(seconds.count(), 1e-9));
  }
  return rate;
}

/// What the names in kMeasured stand for: asked for in every call, parsed once.
const std::vector<ValueSpec>& measured_values() {
  static const std::vector<ValueSpec> values = [] {
    std::vector<ValueSpec> all;
    for (const char* name : kMeasured) all.push_back(parse_codec(name).value);
    return all;
  }();
  return values;
}

/// The measured codec that is most like it; null: there is none.
const char* kin(const ValueSpec& value) {
  for (size_t i = 0; i < kMeasured.size(); ++i) {
    const ValueSpec& measured = measured_values()[i];
    if (measured.hadamard != value.hadamard) continue;
    const bool same_bits = measured.bits == value.bits || value.kind == ValueKind::kQsgd;
    if (measured.hadamard || (measured.kind == value.kind && same_bits)) return kMeasured[i];
  }
  return nullptr;
}

}  // namespace

std::vector<Fabric::CodecRate> measure_codecs() {
  std::vector<float> values(kCount);
  const RandomStream stream = random_stream(0, 0);
  for (uint32_t i = 0; i < kCount; ++i) values[i] = random_unit(stream, i) - 0.5F;
  std::vector<float> errors(kCount);
  std::vector<float> sum(kCount);
  std::vector<std::byte> message;
  std::vector<Fabric::CodecRate> rates;
  for (const char* name : kMeasured) {
    const Codec codec(parse_codec(name));
    message.resize(codec.max_bytes(kCount));
    float* const kept = codec.traits().keeps_error ? errors.data() : nullptr;
    size_t length = 0;
    const double encode = rate_of([&] {
      length = codec.encode({.values = values.data(), .count = kCount, .add = kept, .error = kept},
                            message.data());
    });
    const double decode = rate_of([&] {
      codec.decode_add({message.data(), length}, sum.data(), kCount, 0, CodecKeys{});
    });
    rates.push_back({name, encode, decode});
  }
  return rates;
}

CodingCost coding_cost(const Codec& codec, DType dtype, const Fabric& fabric) {
  const auto bytes = static_cast<double>(element_size(dtype));
  CodingCost cost{codec.traits().bits / (8 * bytes), fabric.copy_rate * kEncodeShare,
                  fabric.copy_rate * kDecodeShare};
  const char* name = kin(codec.spec().value);
  if (name == nullptr) return cost;
  const auto found = std::ranges::find(fabric.codecs, name, &Fabric::CodecRate::name);
  if (found != fabric.codecs.end()) {
    // Rates are of fp32, a call's bytes of its own elements.
    cost.encode_rate = found->encode * bytes / sizeof(float);
    cost.decode_rate = found->decode * bytes / sizeof(float);
  }
  return cost;
}

}  // namespace q7x2
