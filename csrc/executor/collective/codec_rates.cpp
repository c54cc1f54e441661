#include "executor/collective/codec_rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "kernels/codec/random.h"
#include "kernels/codec/sparse_kernels.h"

namespace q7x2 {
namespace {

constexpr std::array kMeasured = {"fp32", "fp16",    "bf16",   "fp8_e4m3", "fp8_e5m2",
                                  "int8", "int6",    "int4",   "int3",     "int2",
                                  "qsgd", "ternary", "onebit", "sign",     "hadamard+int8"};
// Two selections represent all: the cost of a message is interpolated linearly in the share of the
// elements that it contains.
struct Selected {
  const char* name;
  double share;
};
constexpr std::array kSelected = {Selected{"topk:0.01", 0.01}, Selected{"topk:0.1", 0.1}};
constexpr size_t kSelectFrom = size_t{1} << 20;
constexpr size_t kSelectedCount = size_t{1} << 17;  // parts are longer if few elements are sent
// Elements per measurement: as many as a part of a slice has, so that they stay in the same caches.
constexpr size_t kCount = size_t{1} << 15;
constexpr int kTimes = 2;

// Rates of encoding and decoding relative to copying, for codecs that were not measured.
constexpr double kEncodeShare = 0.6;
constexpr double kDecodeShare = 1.5;

/// Bytes of fp32 per second. The best of a few runs, because other load can only slow a run down.
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

/// The parsed names in kMeasured. Every call needs them, so they are parsed once.
const std::vector<ValueSpec>& measured_values() {
  static const std::vector<ValueSpec> values = [] {
    std::vector<ValueSpec> all;
    for (const char* name : kMeasured) all.push_back(parse_codec(name).value);
    return all;
  }();
  return values;
}

/// The measured codec that is most similar; null if there is none.
const char* kin(const ValueSpec& value) {
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

/// Measures the pass over a whole tensor, and then the messages of the selection.
Fabric::CodecRate measure_selection(const char* name, const std::vector<float>& values) {
  const Codec codec(parse_codec(name));
  std::vector<float> sum(kSelectedCount);
  std::vector<uint64_t> occupied(mask_words(kSelectedCount));
  std::vector<std::byte> message(codec.max_bytes(kSelectedCount));
  const auto read = [&](size_t first, size_t) { return values.data() + first; };
  EncodeArguments arguments{.values = values.data(), .count = kSelectedCount};
  size_t length = 0;
  Fabric::CodecRate rate{.name = name};
  rate.select = rate_of(
      kSelectFrom, [&] { arguments.selection = codec.select(read, kSelectFrom, CodecKeys{}); });
  rate.encode = rate_of(kSelectedCount, [&] { length = codec.encode(arguments, message.data()); });
  rate.decode = rate_of(kSelectedCount, [&] {
    codec.decode({message.data(), length}, sum.data(), kSelectedCount, 0, CodecKeys{},
                 {.store = Store::kAdd, .occupied = occupied.data()});
  });
  arguments.values = sum.data();
  arguments.occupied = occupied.data();
  rate.encode_sum =
      rate_of(kSelectedCount, [&] { codec.of_sums().encode(arguments, message.data()); });
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
  const std::vector<float> many = noise(kSelectFrom);
  for (const Selected& each : kSelected) rates.push_back(measure_selection(each.name, many));
  return rates;
}

namespace {

using CodecRate = Fabric::CodecRate;

/// The rates of one host. For host -1: each rate is that of the slowest host, because the others
/// wait for it.
class HostRates {
 public:
  HostRates(const Fabric& fabric, int host) : fabric_(fabric), first_(host), end_(host + 1) {
    if (host < 0) {
      first_ = 0;
      end_ = static_cast<int>(fabric.hosts.size());
    }
  }

  double copy() const {
    double slowest = rate_or_unlimited(fabric_.host_copy_rate(first_));
    for (int host = first_ + 1; host < end_; ++host) {
      slowest = std::min(slowest, rate_or_unlimited(fabric_.host_copy_rate(host)));
    }
    return slowest;
  }

  std::optional<CodecRate> find(const char* name) const {
    const CodecRate* of_first = fabric_.host_codec_rate(first_, name);
    if (of_first == nullptr) return std::nullopt;
    CodecRate slowest = *of_first;
    for (int host = first_ + 1; host < end_; ++host) {
      // Hosts without own rates all have the rates of the Fabric, which were looked up for the
      // first one.
      if (fabric_.hosts[static_cast<size_t>(host)].rates.empty() &&
          fabric_.hosts[static_cast<size_t>(first_)].rates.empty()) {
        continue;
      }
      const CodecRate* rate = fabric_.host_codec_rate(host, name);
      if (rate == nullptr) return std::nullopt;
      for (const auto figure :
           {&CodecRate::encode, &CodecRate::decode, &CodecRate::encode_sum, &CodecRate::select}) {
        const bool is_slower = rate->*figure < slowest.*figure || slowest.*figure == 0;
        if (rate->*figure > 0 && is_slower) slowest.*figure = rate->*figure;
      }
    }
    return slowest;
  }

 private:
  const Fabric& fabric_;
  int first_, end_;
};

/// Rates of messages that contain a given share of the elements.
class SelectionRates {
 public:
  explicit SelectionRates(const HostRates& rates)
      : few_(rates.find(kSelected[0].name)), many_(rates.find(kSelected[1].name)) {}

  /// Whether both selections were measured, with their sums.
  explicit operator bool() const { return is_known(few_) && is_known(many_); }

  double at(double share, double Fabric::CodecRate::*rate) const {
    const double few = 1 / rate_or_unlimited((*few_).*rate);
    const double slope =
        (1 / rate_or_unlimited((*many_).*rate) - few) / (kSelected[1].share - kSelected[0].share);
    return 1 / (few + std::max(slope, 0.0) * std::max(share - kSelected[0].share, 0.0));
  }

 private:
  static bool is_known(const std::optional<CodecRate>& rate) {
    return rate && rate->encode_sum > 0 && rate->select > 0;
  }

  const std::optional<CodecRate> few_;
  const std::optional<CodecRate> many_;
};

}  // namespace

CodingCost coding_cost(const Codec& codec, DType dtype, const Fabric& fabric, int host) {
  const HostRates rates(fabric, host);
  const auto bytes = static_cast<double>(element_size(dtype));
  // Rates count fp32 bytes, calls count bytes of their elements.
  const double widths = bytes / sizeof(float);
  const double copy_rate = rates.copy();
  CodingCost::Message message{.encode_rate = copy_rate * kEncodeShare,
                              .decode_rate = copy_rate * kDecodeShare};
  CodingCost cost{.messages = {}};
  cost.group_bytes = std::max(cost.group_bytes, codec.spec().value.group * element_size(dtype));
  if (codec.traits().selects) cost.select_rate = copy_rate * kEncodeShare;
  const bool is_selection = codec.spec().select != SelectKind::kAll;
  const char* const name = is_selection ? nullptr : kin(codec.spec().value);
  if (const auto rate = name != nullptr ? rates.find(name) : std::nullopt) {
    message.encode_rate = rate_or_unlimited(rate->encode) * widths;
    message.decode_rate = rate_or_unlimited(rate->decode) * widths;
  }
  const SelectionRates selections(rates);
  const bool is_measured = is_selection && selections;
  if (is_measured && codec.traits().selects) {
    cost.select_rate = selections.at(codec.sum_share(1), &Fabric::CodecRate::select) * widths;
  }
  for (int summed = 1; summed <= fabric.world_size(); ++summed) {
    message.ratio = codec.sum_bits(summed) / (8 * bytes);
    // From here on sums do not get longer.
    if (!cost.messages.empty() && message.ratio == cost.messages.back().ratio) break;
    if (is_measured) {
      const double share = codec.sum_share(summed);
      const auto encode = summed == 1 ? &Fabric::CodecRate::encode : &Fabric::CodecRate::encode_sum;
      message.encode_rate = selections.at(share, encode) * widths;
      message.decode_rate = selections.at(share, &Fabric::CodecRate::decode) * widths;
    }
    cost.messages.push_back(message);
  }
  return cost;
}

}  // namespace q7x2
