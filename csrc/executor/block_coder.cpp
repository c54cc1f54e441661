#include "executor/block_coder.h"

#include <algorithm>

#include "kernels/convert.h"
#include "kernels/random.h"
#include "kernels/sparse_kernels.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

constexpr size_t kLine = 64;
// Results of a longer tensor have left the caches before anybody reads them.
constexpr size_t kMostCached = size_t{4} << 20;
constexpr uint64_t kSumRounding = 1;

}  // namespace

BlockCoder::BlockCoder(const Coding& coding, DType dtype, size_t most, size_t total,
                       bool decodes_sums)
    : coding_(coding),
      dtype_(dtype),
      results_(decodes_sums ? coding.codec->of_sums() : *coding.codec),
      store_(dtype == DType::kFloat32 && total > kMostCached ? Store::kPastCaches : Store::kCached),
      sum_(most),
      occupied_(mask_words(most)) {
  const size_t longest = std::max(coding.codec->max_bytes(most), results_.max_bytes(most));
  max_bytes_ = (longest + kLine - 1) / kLine * kLine;
  const bool codes_own = coding.codec->traits().codes_own;
  if (dtype != DType::kFloat32 || codes_own) floats_ = Recycled<float>(most);
  if (codes_own) own_ = Recycled<std::byte>(max_bytes_);
}

void BlockCoder::select(const ReadElements& read, size_t count) {
  selection_ = coding_.codec->select(read, count, coding_.keys);
  bound_ = {selection_.least, selection_.last_tie};
}

const float* BlockCoder::as_floats(const std::byte* elements, size_t count) {
  if (dtype_ == DType::kFloat32) return reinterpret_cast<const float*>(elements);
  widen(floats_.data(), elements, count, dtype_);
  return floats_.data();
}

void BlockCoder::give(const Place& place, size_t count, const std::byte* elements, std::byte* out) {
  const float* values = as_floats(elements, count);
  for (size_t i = 0; i < count; ++i) sum_[i] = values[i] + place.errors[i];
  narrow(out, sum_.data(), count, dtype_);
  const float* given = as_floats(out, count);
  for (size_t i = 0; i < count; ++i) {
    place.errors[i] = is_finite(given[i]) ? sum_[i] - given[i] : place.errors[i];
  }
}

size_t BlockCoder::encode(const Operand& operand, size_t count, const Place& place,
                          std::byte* message) {
  return coding_.codec->encode({.values = as_floats(operand.elements, count),
                                .count = count,
                                .first = place.first,
                                .add = place.errors,
                                .error = place.errors,
                                .selection = operand.is_input ? selection_ : bound_,
                                .keys = coding_.keys},
                               message);
}

void BlockCoder::decode(std::span<const std::byte> message, size_t count, const Place& place,
                        std::byte* elements) {
  float* const out =
      dtype_ == DType::kFloat32 ? reinterpret_cast<float*>(elements) : floats_.data();
  results_.decode(message, out, count, place.first, coding_.keys, {.store = store_});
  if (dtype_ != DType::kFloat32) narrow(elements, out, count, dtype_);
}

void BlockCoder::inspect(const std::byte* elements, size_t count) {
  const float* values = as_floats(elements, count);
  met_nonfinite_ = met_nonfinite_ || !std::all_of(values, values + count, is_finite);
}

void BlockCoder::add(const Operand& operand, size_t count, const Place& place, bool is_first,
                     bool codes_own) {
  std::span<const std::byte> message = operand.message;
  if (operand.elements != nullptr && codes_own) {
    message = {own_.data(), encode(operand, count, place, own_.data())};
  }
  if (!message.empty()) {
    // A contribution, or a sum that goes on to be added.
    entries_ += Codec::entries(message);
    const Codec& codec = results_.made(message) ? results_ : *coding_.codec;
    codec.decode(message, sum_.data(), count, place.first, coding_.keys,
                 {.store = is_first ? Store::kCached : Store::kAdd, .occupied = occupied_.data()});
    return;
  }
  const float* values = as_floats(operand.elements, count);
  if (is_first) {
    std::copy_n(values, count, sum_.data());
  } else {
    for (size_t i = 0; i < count; ++i) sum_[i] += values[i];
  }
}

void BlockCoder::add_up(std::span<const Operand> operands, size_t count, const Place& place,
                        int divisor, bool codes_own) {
  bool is_first = true;
  entries_ = 0;
  std::fill_n(occupied_.begin(), mask_words(count), uint64_t{0});
  if (place.errors != nullptr && place.takes_residual && !codes_own) {
    std::copy_n(place.errors, count, sum_.data());
    is_first = false;
  }
  bool is_as_selected = true;
  for (Operand operand : operands) {
    // An operand that this rank encodes changes the errors, and so what the next one sends.
    operand.is_input = operand.is_input && is_as_selected;
    is_as_selected = is_as_selected && (operand.elements == nullptr || place.errors == nullptr);
    add(operand, count, place, is_first, codes_own);
    is_first = false;
  }
  if (divisor != 1) {
    const auto by = static_cast<float>(divisor);
    for (size_t i = 0; i < count; ++i) sum_[i] /= by;
  }
}

void BlockCoder::fold(std::span<const Operand> operands, size_t count, const Place& place,
                      int divisor, std::byte* elements) {
  // Elements alone are added exactly, whatever the codec.
  const bool codes_own =
      coding_.codec->traits().codes_own &&
      std::ranges::any_of(operands, [](const Operand& each) { return each.elements == nullptr; });
  add_up(operands, count, place, divisor, codes_own);
  narrow(elements, sum_.data(), count, dtype_);
  if (place.errors == nullptr || !place.takes_residual || codes_own) return;
  for (size_t i = 0; i < count; ++i) place.errors[i] = is_finite(sum_[i]) ? 0 : place.errors[i];
}

size_t BlockCoder::fold_to_message(std::span<const Operand> operands, size_t count,
                                   const Place& place, int divisor, std::byte* message) {
  const CodecTraits& traits = coding_.codec->traits();
  add_up(operands, count, place, divisor, traits.codes_own);
  EncodeArguments arguments{.values = sum_.data(),
                            .count = count,
                            .first = place.first,
                            .error = place.errors,
                            .error_scale = static_cast<float>(divisor),
                            .selection = selection_,
                            .keys = coding_.keys};
  // By other numbers than this rank's own contribution, or ties of signs would go the owner's way.
  arguments.keys.rounding = mix_keys(coding_.keys.rounding, kSumRounding);
  // Selected again are as many as an operand had in the mean.
  arguments.most = std::max<size_t>((entries_ + operands.size() - 1) / operands.size(), 1);
  // If all operands were messages, this rank's contribution has left its own errors behind. Those
  // of the sum, if it has any, add to them.
  if (traits.codes_own) arguments.occupied = occupied_.data();
  const bool keeps = traits.codes_own || !place.takes_residual;
  if (keeps) arguments.error = nullptr;
  const bool adds = place.errors != nullptr && keeps && !traits.exact_sums;
  if (adds) {
    if (lost_.empty()) lost_.resize(sum_.size());
    std::fill_n(lost_.begin(), count, 0.0F);
    arguments.error = lost_.data();
  }
  const size_t length = results_.encode(arguments, message);
  for (size_t i = 0; adds && i < count; ++i) place.errors[i] += lost_[i];
  return length;
}

}  // namespace q7x2
