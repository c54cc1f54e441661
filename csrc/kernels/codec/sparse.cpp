// Encodes a block's selection as bytes, and decodes it.
#include "kernels/codec/sparse.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/codec/random.h"
#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_indices.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/sparse_select.h"
#include "kernels/codec/value_codec.h"
#include "kernels/codec/value_elements.h"

namespace q7x2 {
namespace {

constexpr size_t kPiece = 4096;  // number of elements that fit into the L1 cache together
constexpr uint64_t kNoTie = ~uint64_t{0};

/// Buffers of a thread. They only grow.
struct Scratch {
  std::vector<float> sums;          // one piece
  std::vector<uint64_t> mask;       // a bit per element
  std::vector<uint64_t> positions;  // a bit per block
  std::vector<float> values;        // values of the elements that are sent
  std::vector<float> errors;        // errors of the elements that are sent
  std::vector<std::byte> indices;

  template <class T>
  static T* room(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
  }
};

Scratch& scratch() {
  thread_local Scratch buffers;
  return buffers;
}

/// What the bits of indices stand for: elements, or blocks of the tensor, cut at a message's ends.
class Positions {
 public:
  Positions(const CodecSpec& spec, size_t elements, uint64_t first) : elements_(elements) {
    const bool are_blocks =
        spec.select == SelectKind::kBlocks || spec.select == SelectKind::kNonZeroBlocks;
    unit_ = are_blocks ? kSelectBlock : 1;
    head_ = unit_ - static_cast<size_t>(first % unit_);
  }
  bool are_elements() const { return unit_ == 1; }
  size_t count() const { return elements_ == 0 ? 0 : (elements_ + unit_ - head_ - 1) / unit_ + 1; }
  size_t begin(size_t position) const { return position == 0 ? 0 : head_ + (position - 1) * unit_; }
  size_t end(size_t position) const { return std::min(elements_, head_ + position * unit_); }

 private:
  size_t elements_;
  size_t unit_;
  size_t head_;  // elements of the first position, before it is cut at its end
};

bool is_set(const uint64_t* mask, size_t i) {
  return (mask[i / 64] >> (i % 64) & 1) != 0;
}

void set_bits(uint64_t* mask, size_t begin, size_t end) {
  while (begin < end) {
    const size_t shift = begin % 64;
    const size_t length = std::min(64 - shift, end - begin);
    mask[begin / 64] |= (~uint64_t{0} >> (64 - length)) << shift;
    begin += length;
  }
}

/// Which elements of a block are sent, with their values and errors in dense arrays.
class SelectedBlock {
 public:
  SelectedBlock(const CodecSpec& spec, const EncodeArguments& arguments)
      : spec_(spec),
        arguments_(arguments),
        positions_(spec, arguments.count, arguments.first),
        kernels_(dispatched_sparse_kernels()),
        selection_(selection()) {
    const size_t count = arguments.count;
    mask_ = Scratch::room(scratch().mask, mask_words(count));
    if (arguments.error != nullptr) errors_ = Scratch::room(scratch().errors, count);
    if (selection_.gathered != nullptr) {
      take_gathered();
      return;
    }
    float* const room = Scratch::room(scratch().values, count);
    values_ = room;
    if (takes_occupied(room)) return;
    if (positions_.are_elements()) {
      mark_elements(room);
    } else {
      mark_blocks(room);
    }
  }

  const Positions& positions() const { return positions_; }
  size_t entries() const { return entries_; }
  size_t set_positions() const { return set_positions_; }
  const uint64_t* mask() const { return mask_; }
  const uint64_t* position_mask() const {
    return positions_.are_elements() ? mask_ : scratch().positions.data();
  }
  const float* values() const { return values_; }
  float* errors() const { return errors_; }
  /// Whether numbers that are not finite, which must be sent, are not selected.
  bool must_be_dense() const { return must_be_dense_; }

 private:
  const float* sums(size_t begin, size_t count) const {
    const float* values = arguments_.values + begin;
    if (arguments_.add == nullptr) return values;
    float* const buffer = Scratch::room(scratch().sums, std::max(count, kPiece));
    kernels_.sum(values, arguments_.add + begin, 1, count, buffer);
    return buffer;
  }

  Selection selection() const {
    switch (spec_.select) {
      case SelectKind::kThreshold: {
        Selection own = select_threshold(spec_.amount);
        own.gathered = arguments_.selection.gathered;
        return own;
      }
      case SelectKind::kNonZero:
      case SelectKind::kNonZeroBlocks:
        return {1};
      case SelectKind::kReselect: {
        const auto read = [this](size_t begin, size_t count) { return sums(begin, count); };
        const size_t most =
            arguments_.most.value_or(selected_count(spec_.amount, arguments_.count));
        Selection own = select_largest(read, arguments_.count, most,
                                       mix_keys(arguments_.keys.shared, arguments_.first));
        if (own.last_tie != kNoTie) own.last_tie += arguments_.first;
        return own;
      }
      default:
        return arguments_.selection;
    }
  }

  size_t mark(const float* values, size_t begin, size_t count, uint64_t* mask) const {
    const uint64_t first = arguments_.first + begin;
    if (spec_.select == SelectKind::kRandomK) {
      return kernels_.mark_random(arguments_.keys.shared, first, count, random_limit(spec_.amount),
                                  mask);
    }
    if (spec_.select == SelectKind::kNofM) {
      const auto m = static_cast<size_t>(spec_.m);
      return kernels_.mark_largest(values, count, m - static_cast<size_t>(first % m), spec_.n,
                                   spec_.m, mask);
    }
    return kernels_.mark(values, count, selection_.least, ties_among(selection_, first, count),
                         mask);
  }

  void take_gathered() {
    const bool of_block = spec_.select == SelectKind::kReselect;
    const size_t first = of_block ? 0 : static_cast<size_t>(arguments_.first);
    entries_ = selection_.gathered->copy_mask(first, arguments_.count, mask_);
    set_positions_ = entries_;
    values_ = selection_.gathered->values_from(first);
    if (errors_ != nullptr) {
      kernels_.compact(arguments_.error, mask_, arguments_.count, errors_);
    }
  }

  /// Sends the occupied elements if they are known: a zero among them is the result of a
  /// cancellation.
  bool takes_occupied(float* values) {
    const bool fits = spec_.select == SelectKind::kNonZero && arguments_.occupied != nullptr &&
                      arguments_.add == nullptr && arguments_.error == nullptr;
    if (!fits) return false;
    entries_ = kernels_.compact(arguments_.values, arguments_.occupied, arguments_.count, values);
    if (std::find(values, values + entries_, 0.0F) != values + entries_) {
      entries_ = 0;
      return false;
    }
    std::copy_n(arguments_.occupied, mask_words(arguments_.count), mask_);
    set_positions_ = entries_;
    return true;
  }

  void mark_elements(float* values_out) {
    for (size_t begin = 0; begin < arguments_.count; begin += kPiece) {
      const size_t count = std::min(kPiece, arguments_.count - begin);
      const float* values = sums(begin, count);
      uint64_t* const mask = mask_ + begin / 64;
      const size_t sent = mark(values, begin, count, mask);
      if (spec_.select == SelectKind::kRandomK) find_hidden(values, mask, count);
      kernels_.compact(values, mask, count, values_out + entries_);
      if (errors_ != nullptr) {
        kernels_.compact(arguments_.error + begin, mask, count, errors_ + entries_);
      }
      entries_ += sent;
    }
    set_positions_ = entries_;
  }

  void find_hidden(const float* values, const uint64_t* mask, size_t count) {
    std::array<uint64_t, kPiece / 64> non_finite;
    if (kernels_.mark(values, count, kInfinityBits - 1, 0, non_finite.data()) == 0) return;
    for (size_t word = 0; word < mask_words(count); ++word) {
      must_be_dense_ = must_be_dense_ || (non_finite[word] & ~mask[word]) != 0;
    }
  }

  void mark_blocks(float* values_out) {
    const size_t words = mask_words(positions_.count());
    uint64_t* const blocks = Scratch::room(scratch().positions, words);
    std::fill_n(blocks, words, uint64_t{0});
    std::fill_n(mask_, mask_words(arguments_.count), uint64_t{0});
    for (size_t position = 0; position < positions_.count(); ++position) {
      const size_t begin = positions_.begin(position);
      const size_t end = positions_.end(position);
      const size_t count = end - begin;
      const float* values = sums(begin, count);
      const bool tied =
          (arguments_.first + begin) / kSelectBlock <= selection_.last_tie / kSelectBlock;
      const uint32_t norm = magnitude_bits(kernels_.norm(values, count));
      if (!is_selected(norm, selection_.least, tied)) continue;
      set_bits(blocks, position, position + 1);
      set_bits(mask_, begin, end);
      std::copy_n(values, count, values_out + entries_);
      if (errors_ != nullptr) std::copy_n(arguments_.error + begin, count, errors_ + entries_);
      entries_ += count;
      ++set_positions_;
    }
  }

  const CodecSpec& spec_;
  const EncodeArguments& arguments_;
  Positions positions_;
  const SparseKernels& kernels_;
  Selection selection_;
  uint64_t* mask_ = nullptr;
  const float* values_ = nullptr;
  float* errors_ = nullptr;
  size_t entries_ = 0;
  size_t set_positions_ = 0;
  bool must_be_dense_ = false;
};

/// The layout of the indices, and their bytes in scratch().indices.
struct Indices {
  Layout layout;
  size_t bytes;
};

Indices encode_indices(const CodecSpec& spec, const SelectedBlock& block) {
  if (spec.select == SelectKind::kRandomK) return {Layout::kImplied, 0};
  const size_t positions = block.positions().count();
  const size_t bitmap = bitmap_bytes(positions);
  std::byte* const out = Scratch::room(scratch().indices, bitmap + 4);
  if (block.set_positions() < bitmap) {
    const size_t deltas = encode_deltas(block.position_mask(), positions, bitmap, out);
    if (deltas < bitmap) return {Layout::kDeltas, deltas};
  }
  encode_bitmap(block.position_mask(), positions, out);
  return {Layout::kBitmap, bitmap};
}

ValueBlock value_block(const EncodeArguments& arguments) {
  return {arguments.values, arguments.count,       arguments.first,       arguments.add,
          arguments.error,  arguments.error_scale, arguments.keys.shared, arguments.keys.rounding};
}

Expand expand_of(Store store) {
  switch (store) {
    case Store::kAdd:
      return Expand::kAdd;
    case Store::kPastCaches:
      return Expand::kStream;
    default:
      return Expand::kSet;
  }
}

/// Decodes `indices` to the element mask in scratch().mask. Returns false if they are not valid.
bool decode_indices(const CodecSpec& spec, SparseShape shape, std::span<const std::byte> indices,
                    size_t count, uint64_t first, const CodecKeys& keys) {
  uint64_t* const mask = Scratch::room(scratch().mask, mask_words(count));
  const bool is_implied = spec.select == SelectKind::kRandomK;
  if (is_implied != (shape.layout == Layout::kImplied)) return false;
  if (is_implied) {
    const size_t sent = dispatched_sparse_kernels().mark_random(keys.shared, first, count,
                                                                random_limit(spec.amount), mask);
    return indices.empty() && sent == shape.entries;
  }
  const Positions positions(spec, count, first);
  uint64_t* const bits = positions.are_elements()
                             ? mask
                             : Scratch::room(scratch().positions, mask_words(positions.count()));
  const std::optional<size_t> set = shape.layout == Layout::kDeltas
                                        ? decode_deltas(indices, positions.count(), bits)
                                        : decode_bitmap(indices, positions.count(), bits);
  if (!set) return false;
  if (positions.are_elements()) return *set == shape.entries;
  std::fill_n(mask, mask_words(count), uint64_t{0});
  size_t entries = 0;
  for (size_t position = 0; position < positions.count(); ++position) {
    if (!is_set(bits, position)) continue;
    set_bits(mask, positions.begin(position), positions.end(position));
    entries += positions.end(position) - positions.begin(position);
  }
  return entries == shape.entries;
}

}  // namespace

SparseBody encode_sparse(const CodecSpec& spec, const EncodeArguments& arguments, std::byte* body) {
  const ValueKernels& values = dispatched_value_kernels();
  const size_t dense = value_bytes(spec.value, arguments.count);
  const auto encode_dense = [&]() -> SparseBody {
    values.encode(spec.value, value_block(arguments), body);
    return {{Layout::kDense, static_cast<uint32_t>(arguments.count)}, dense};
  };
  if (spec.select == SelectKind::kAll) return encode_dense();
  const SelectedBlock block(spec, arguments);
  const size_t entries = block.entries();
  const size_t bytes = value_bytes(spec.value, entries);
  if (bytes >= dense || block.must_be_dense()) return encode_dense();
  const Indices indices = encode_indices(spec, block);
  if (bytes + indices.bytes >= dense) return encode_dense();
  ValueBlock selected = value_block(arguments);
  selected.values = block.values();
  selected.count = entries;
  selected.add = nullptr;
  selected.error = block.errors();
  values.encode(spec.value, selected, body);
  if (indices.bytes > 0) std::memcpy(body + bytes, scratch().indices.data(), indices.bytes);
  if (arguments.error != nullptr) {
    const SparseKernels& kernels = dispatched_sparse_kernels();
    if (arguments.values != nullptr) {
      kernels.sum(arguments.values, arguments.add, arguments.error_scale, arguments.count,
                  arguments.error);
    }
    kernels.expand(block.errors(), block.mask(), arguments.count, Expand::kKeep, arguments.error);
  }
  return {{indices.layout, static_cast<uint32_t>(entries)}, bytes + indices.bytes};
}

bool is_surely_sparse(const CodecSpec& spec, size_t entries, size_t count) {
  const size_t indices = spec.select == SelectKind::kRandomK ? 0 : bitmap_bytes(count);
  return value_bytes(spec.value, entries) + indices < value_bytes(spec.value, count);
}

bool decode_sparse(const CodecSpec& spec, SparseShape shape, std::span<const std::byte> body,
                   float* out, size_t count, uint64_t first, const CodecKeys& keys,
                   const DecodeOptions& options) {
  if (shape.entries > count || shape.layout > Layout::kBitmap) return false;
  const ValueKernels& values = dispatched_value_kernels();
  const size_t bytes = value_bytes(spec.value, shape.entries);
  if (shape.layout == Layout::kDense) {
    if (shape.entries != count || body.size() != bytes) return false;
    values.decode(spec.value, body.data(), out, count, first, keys.shared,
                  options.store == Store::kAdd);
    if (options.occupied != nullptr) set_bits(options.occupied, 0, count);
    return true;
  }
  if (spec.select == SelectKind::kAll || body.size() < bytes) return false;
  if (!decode_indices(spec, shape, body.subspan(bytes), count, first, keys)) return false;
  float* const entries = Scratch::room(scratch().values, shape.entries);
  values.decode(spec.value, body.data(), entries, shape.entries, first, keys.shared, false);
  const uint64_t* const mask = scratch().mask.data();
  dispatched_sparse_kernels().expand(entries, mask, count, expand_of(options.store), out);
  for (size_t i = 0; options.occupied != nullptr && i < mask_words(count); ++i) {
    options.occupied[i] |= mask[i];
  }
  return true;
}

}  // namespace q7x2
