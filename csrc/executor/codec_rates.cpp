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
// Stands for all selections.
constexpr const char* kSelected = "topk:0.01";
constexpr size_t kSelectFrom = size_t{1} << 20;
// As long as a part of a slice, so that it stays in the caches in which such a part does.
constexpr size_t kCount = size_t{1} << 15;
constexpr int kTimes = 2;

// What a core encodes and decodes a second, in terms of what it copies, where nobody has measured.
constexpr double kEncodeShare = 0.6;
constexpr double kDecodeShare = 1.5;

/// Bytes of fp32 a second: the best of a few, since whatever else runs can only make it slower.
template <class Body>
double rate_of(size_t count, Body body) {
  double rate = 0;
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rate = std::max(rate,
                    static_cast<double>(count * sizeof(float)) / std::max(seconds.count(), 1e-9));
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
const char* kin(const CodecSpec& spec) {
  if (spec.select != SelectKind::kAll) return kSelected;
  const ValueSpec& value = spec.value;
  for (size_t i = 0; i < kMeasured.size(); ++i) {
    const ValueSpec& measured = measured_values()[i];
    if (measured.hadamard != value.hadamard) continue;
    const bool same_bits = measured.bits == value.bits || value.kind == ValueKind::kQsgd;
    if (measured.hadamard || (measured.kind == value.kind && same_bits)) return kMeasured[i];
  }
  return nullptr;
}

std::vector<float> noise(size_t count) {
  std::vector<float> values(count);
  const RandomStream stream = random_stream(0, 0);
  for (uint32_t i = 0; i < count; ++i) values[i] = random_unit(stream, i) - 0.5F;
  return values;
}

/// The pass over a whole tensor, and then its messages.
Fabric::CodecRate measure_selection() {
  const Codec codec(parse_codec(kSelected));
  const std::vector<float> values = noise(kSelectFrom);
  std::vector<float> sum(kCount);
  std::vector<std::byte> message(codec.max_bytes(kCount));
  const auto read = [&](size_t first, size_t) { return values.data() + first; };
  EncodeArguments arguments{.values = values.data(), .count = kCount};
  size_t length = 0;
  Fabric::CodecRate rate{.name = kSelected};
  rate.select = rate_of(
      kSelectFrom, [&] { arguments.selection = codec.select(read, kSelectFrom, CodecKeys{}); });
  rate.encode = rate_of(kCount, [&] { length = codec.encode(arguments, message.data()); });
  rate.decode = rate_of(kCount, [&] {
    codec.decode_add({message.data(), length}, sum.data(), kCount, 0, CodecKeys{});
  });
  return rate;
}

}  // namespace

std::vector<Fabric::CodecRate> measure_codecs() {
  const std::vector<float> values = noise(kCount);
  std::vector<float> errors(kCount);
  std::vector<float> sum(kCount);
  std::vector<std::byte> message;
  std::vector<Fabric::CodecRate> rates;
  for (const char* name : kMeasured) {
    const Codec codec(parse_codec(name));
    message.resize(codec.max_bytes(kCount));
    float* const kept = codec.traits().keeps_error ? errors.data() : nullptr;
    size_t length = 0;
    const double encode = rate_of(kCount, [&] {
      length = codec.encode({.values = values.data(), .count = kCount, .add = kept, .error = kept},
                            message.data());
    });
    const double decode = rate_of(kCount, [&] {
      codec.decode_add({message.data(), length}, sum.data(), kCount, 0, CodecKeys{});
    });
    rates.push_back({name, encode, decode});
  }
  rates.push_back(measure_selection());
  return rates;
}

CodingCost coding_cost(const Codec& codec, DType dtype, const Fabric& fabric) {
  const auto bytes = static_cast<double>(element_size(dtype));
  CodingCost cost{.ratios = {codec.traits().bits / (8 * bytes)},
                  .encode_rate = fabric.copy_rate * kEncodeShare,
                  .decode_rate = fabric.copy_rate * kDecodeShare};
  for (int summed = 2; summed <= fabric.world_size(); ++summed) {
    const double ratio = codec.sum_bits(summed) / (8 * bytes);
    if (ratio == cost.ratios.back()) break;  // they have filled up, or do not
    cost.ratios.push_back(ratio);
  }
  if (codec.traits().selects) cost.select_rate = fabric.copy_rate * kEncodeShare;
  const char* name = kin(codec.spec());
  if (name == nullptr) return cost;
  const auto found = std::ranges::find(fabric.codecs, name, &Fabric::CodecRate::name);
  if (found != fabric.codecs.end()) {
    // Rates are of fp32, a call's bytes of its own elements.
    cost.encode_rate = found->encode * bytes / sizeof(float);
    cost.decode_rate = found->decode * bytes / sizeof(float);
    if (codec.traits().selects && found->select > 0) {
      cost.select_rate = found->select * bytes / sizeof(float);
    }
  }
  return cost;
}

}  // namespace q7x2
