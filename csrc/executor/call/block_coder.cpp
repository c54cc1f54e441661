#include "executor/call/block_coder.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "kernels/codec/random.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/reduce.h"

namespace q7x2 {
namespace {

constexpr size_t kLine = 64;
// Results of a longer tensor leave the caches before anybody reads them, so they are stored past
// the caches. In bytes.
constexpr size_t kMostCached = size_t{4} << 20;

/// sum += values
void add_to(float* sum, const float* values, size_t count) {
  const std::array<const void*, 2> both = {sum, values};
  reduce(sum, both, count, DType::kFloat32, ReduceKind::kSum);
}

/// Writes `values` + `add`, which may be null, as fp32. Nothing is lost, so the errors become zero,
/// except where a sum is not finite.
void write_exactly(const float* values, const float* add, float* errors, size_t count,
                   std::byte* out) {
  dispatched_value_kernels().encode(
      ValueSpec{}, {.values = values, .count = count, .add = add, .error = errors}, out);
}

/// What becomes of the errors of a sum that is encoded.
enum class SumErrors : uint8_t { kDropped, kReplace, kAdded };

/// If the codec also encodes this rank's own contribution, or another op adds the residual, then
/// `place.errors` already holds the errors of that contribution, and those of the sum are added.
SumErrors sum_errors(const BlockCoder::Place& place, const CodecTraits& traits) {
  if (place.errors == nullptr) return SumErrors::kDropped;
  if (place.takes_residual && !traits.codes_own) return SumErrors::kReplace;
  return traits.exact_sums ? SumErrors::kDropped : SumErrors::kAdded;
}

}  // namespace

BlockCoder::BlockCoder(const Coding& coding, DType dtype, size_t most, size_t total,
                       bool decodes_sums)
    : coding_(coding),
      dtype_(dtype),
      most_(most),
      results_(decodes_sums ? coding.codec->of_sums() : *coding.codec),
      store_(dtype == DType::kFloat32 && total > kMostCached ? Store::kPastCaches
                                                             : Store::kCached) {
  const size_t longest = std::max(coding.codec->max_bytes(most), results_.max_bytes(most));
  max_bytes_ = (longest + kLine - 1) / kLine * kLine;
}

BlockCoder::Lease::Lease(BlockCoder& coder) : coder_(coder) {
  {
    const std::lock_guard<std::mutex> lock(coder.mutex_);
    if (!coder.idle_.empty()) {
      space_ = std::move(coder.idle_.back());
      coder.idle_.pop_back();
      return;
    }
  }
  space_ = std::make_unique<Workspace>();
  space_->sum = Recycled<float>(coder.most_);
  space_->occupied.resize(mask_words(coder.most_));
  const bool codes_own = coder.coding_.codec->traits().codes_own;
  if (coder.dtype_ != DType::kFloat32 || codes_own) space_->floats = Recycled<float>(coder.most_);
  if (codes_own) space_->own = Recycled<std::byte>(coder.max_bytes_);
}

// Drops the workspace if there is no memory to keep it.
BlockCoder::Lease::~Lease() {
  const std::lock_guard<std::mutex> lock(coder_.mutex_);
  try {
    coder_.idle_.push_back(std::move(space_));
  } catch (const std::bad_alloc&) {
  }
}

void BlockCoder::select(const ReadElements& read, size_t count) {
  selection_ = coding_.codec->select(read, count, coding_.keys);
  bound_ = {selection_.least, selection_.last_tie};
}

void BlockCoder::take(Selection selection) {
  selection_ = std::move(selection);
  has_gathered_only_ = true;
}

const float* BlockCoder::as_floats(Workspace& space, const std::byte* elements,
                                   size_t count) const {
  if (dtype_ == DType::kFloat32) return reinterpret_cast<const float*>(elements);
  widen(space.floats.data(), elements, count, dtype_);
  return space.floats.data();
}

void BlockCoder::add_residual(const Place& place, size_t count, const std::byte* elements,
                              std::byte* out) {
  if (dtype_ == DType::kFloat32) {
    const auto* const values = reinterpret_cast<const float*>(elements);
    return write_exactly(values, place.errors, place.errors, count, out);
  }
  const Lease lease(*this);
  Workspace& space = *lease;
  const float* values = as_floats(space, elements, count);
  for (size_t i = 0; i < count; ++i) space.sum[i] = values[i] + place.errors[i];
  narrow(out, space.sum.data(), count, dtype_);
  const float* given = as_floats(space, out, count);
  for (size_t i = 0; i < count; ++i) {
    place.errors[i] = is_finite(given[i]) ? space.sum[i] - given[i] : place.errors[i];
  }
}

size_t BlockCoder::encode(const Operand& operand, size_t count, const Place& place,
                          std::byte* message) {
  const Lease lease(*this);
  return encode(*lease, operand, count, place, message);
}

size_t BlockCoder::encode(Workspace& space, const Operand& operand, size_t count,
                          const Place& place, std::byte* message) {
  const bool is_gathered = operand.is_input && has_gathered_only_;
  return coding_.codec->encode(
      {.values = is_gathered ? nullptr : as_floats(space, operand.elements, count),
       .count = count,
       .first = place.first,
       .add = is_gathered ? nullptr : place.errors,
       .error = place.errors,
       .selection = operand.is_input ? selection_ : bound_,
       .keys = coding_.keys},
      message);
}

void BlockCoder::decode(std::span<const std::byte> message, size_t count, const Place& place,
                        std::byte* elements) {
  if (dtype_ == DType::kFloat32) {
    results_.decode(message, reinterpret_cast<float*>(elements), count, place.first, coding_.keys,
                    {.store = store_});
    return;
  }
  const Lease lease(*this);
  float* const out = (*lease).floats.data();
  results_.decode(message, out, count, place.first, coding_.keys, {.store = store_});
  narrow(elements, out, count, dtype_);
}

void BlockCoder::inspect(const std::byte* elements, size_t count) {
  const Lease lease(*this);
  const float* values = as_floats(*lease, elements, count);
  if (!std::all_of(values, values + count, is_finite)) met_nonfinite_ = true;
}

void BlockCoder::add(Workspace& space, const Operand& operand, size_t count, const Place& place,
                     bool is_first, bool codes_own) {
  std::span<const std::byte> message = operand.message;
  if (operand.elements != nullptr && codes_own) {
    message = {space.own.data(), encode(space, operand, count, place, space.own.data())};
  }
  if (!message.empty()) {
    // The message is a contribution, or a partial sum.
    space.entries += Codec::entries(message);
    const Codec& codec = results_.made(message) ? results_ : *coding_.codec;
    codec.decode(
        message, space.sum.data(), count, place.first, coding_.keys,
        {.store = is_first ? Store::kCached : Store::kAdd, .occupied = space.occupied.data()});
    return;
  }
  const float* values = as_floats(space, operand.elements, count);
  if (is_first) {
    std::copy_n(values, count, space.sum.data());
  } else {
    add_to(space.sum.data(), values, count);
  }
}

void BlockCoder::add_up(Workspace& space, std::span<const Operand> operands, size_t count,
                        const Place& place, int divisor, bool codes_own) {
  bool is_first = true;
  space.entries = 0;
  std::fill_n(space.occupied.begin(), mask_words(count), uint64_t{0});
  if (place.errors != nullptr && place.takes_residual && !codes_own) {
    std::copy_n(place.errors, count, space.sum.data());
    is_first = false;
  }
  bool is_as_selected = true;
  for (Operand operand : operands) {
    // When this rank encodes an operand, the errors change, so the selection that was made with the
    // old errors does not hold for the operands that follow.
    operand.is_input = operand.is_input && is_as_selected;
    is_as_selected = is_as_selected && (operand.elements == nullptr || place.errors == nullptr);
    add(space, operand, count, place, is_first, codes_own);
    is_first = false;
  }
  if (divisor != 1) {
    const std::array<const void*, 1> sum = {space.sum.data()};
    reduce(space.sum.data(), sum, count, DType::kFloat32, ReduceKind::kSum, divisor);
  }
}

void BlockCoder::fold(std::span<const Operand> operands, size_t count, const Place& place,
                      int divisor, std::byte* elements) {
  // If all operands are elements, they are added exactly, whatever the codec.
  const bool codes_own =
      coding_.codec->traits().codes_own &&
      std::ranges::any_of(operands, [](const Operand& each) { return each.elements == nullptr; });
  const Lease lease(*this);
  Workspace& space = *lease;
  add_up(space, operands, count, place, divisor, codes_own);
  const bool settles = place.errors != nullptr && place.takes_residual && !codes_own;
  if (settles && dtype_ == DType::kFloat32) {
    return write_exactly(space.sum.data(), nullptr, place.errors, count, elements);
  }
  narrow(elements, space.sum.data(), count, dtype_);
  if (!settles) return;
  for (size_t i = 0; i < count; ++i)
    place.errors[i] = is_finite(space.sum[i]) ? 0 : place.errors[i];
}

size_t BlockCoder::fold_to_message(std::span<const Operand> operands, size_t count,
                                   const Place& place, int divisor, std::byte* message,
                                   std::chrono::steady_clock::time_point* added_up) {
  const CodecTraits& traits = coding_.codec->traits();
  const Lease lease(*this);
  Workspace& space = *lease;
  add_up(space, operands, count, place, divisor, traits.codes_own);
  if (added_up != nullptr) *added_up = std::chrono::steady_clock::now();
  EncodeArguments arguments{.values = space.sum.data(),
                            .count = count,
                            .first = place.first,
                            .error_scale = static_cast<float>(divisor),
                            .selection = bound_,
                            .keys = coding_.keys};
  arguments.keys.rounding = mix_keys(coding_.keys.rounding, kSumRounding);
  // The sum is selected again: as many elements as an operand contains on average.
  arguments.most = std::max<size_t>((space.entries + operands.size() - 1) / operands.size(), 1);
  if (traits.codes_own) arguments.occupied = space.occupied.data();
  const SumErrors errors = sum_errors(place, traits);
  if (errors == SumErrors::kReplace) arguments.error = place.errors;
  if (errors == SumErrors::kAdded) {
    if (space.lost.empty()) space.lost.resize(space.sum.size());
    std::fill_n(space.lost.begin(), count, 0.0F);
    arguments.error = space.lost.data();
  }
  const size_t length = results_.encode(arguments, message);
  if (errors == SumErrors::kAdded) add_to(place.errors, space.lost.data(), count);
  return length;
}

}  // namespace q7x2
