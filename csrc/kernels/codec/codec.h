// Codec: a block of fp32 numbers becomes a message of fewer bytes, and back.
//
// A message stands for itself: a header says which codec made it and of how many elements, and the
// decoder checks that, and every count and offset in it, before it reads on. docs/wire_format.md
// has the layout, byte by byte. Equal inputs give equal messages on every processor.
//
// What is lost on the way can be kept. With an error buffer e, encode sends C(v + e) and leaves
// v + e - C(v + e) in e, in the same pass over memory (error feedback; Seide et al., "1-bit
// stochastic gradient descent", 2014; Karimireddy et al., "Error feedback fixes SignSGD", 2019).
//
// That works with codes that are nearer to what they stand for than zero is. Unbiased ones of few
// levels are not, and what is kept of them would grow without bound: with an error buffer all
// rounding is to the nearest, and scales are the nearest.
//
// Numbers that are not finite reach every receiver: their group decodes to NaN (a selection sends
// them as they are, first of all; a cast keeps them), and its errors stay as they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/codec/codec_arguments.h"
#include "kernels/codec/codec_spec.h"

namespace q7x2 {

struct CodecTraits {
  /// C(a) + C(b) is the code of a + b: any Plan may add messages. Else an owner decodes and adds.
  bool linear = false;
  /// The mean of what is decoded, over the random numbers, is what was encoded, where no error is
  /// kept.
  bool unbiased = false;
  /// Zeros come out as zeros, whatever lies beside them.
  bool keeps_zeros = true;
  /// A message's length depends on the number of elements alone.
  bool fixed_size = true;
  /// An error buffer makes sense.
  bool keeps_error = true;
  /// An owner's own contribution must go through the codec like those of others: selections and
  /// votes. Else it is added as it is.
  bool codes_own = false;
  /// Sums of what it decodes to are sent as they are: they may be encoded again and again.
  bool exact_sums = false;
  /// `select` must see the whole tensor first.
  bool selects = false;
  /// Bits of a message an element, for planning; of selections those of the contributions.
  double bits = 32;
};

class Codec {
 public:
  /// Throws as parse_codec does.
  static std::shared_ptr<const Codec> make(const std::string& name);
  explicit Codec(const CodecSpec& spec);

  /// As `to_string` gives it.
  const std::string& name() const { return name_; }
  const CodecSpec& spec() const { return spec_; }
  const CodecTraits& traits() const { return traits_; }
  /// Else its integers are added as such, under scales that ranks agree on:
  /// kernels/codec/sum_int.h.
  bool has_messages() const;
  /// |v - C(v)| / |v| (L2) of a vector of normal numbers, measured when it is first asked for; 0
  /// where there are no messages. docs/codecs.md has the formulas.
  double normal_error() const;
  /// |v - C(v)|^2 of `count` numbers, as one message. Not of codecs without messages.
  double squared_error(const float* values, size_t count) const;
  /// Bits of a message an element that is the sum of so many contributions, for planning.
  double sum_bits(int contributions) const;
  /// The share of the elements that such a message holds.
  double sum_share(int contributions) const;
  /// What an owner sends a sum with: of selections all that is not zero.
  const Codec& of_sums() const { return of_sums_ ? *of_sums_ : *this; }

  /// The longest message of a block of `count` elements.
  size_t max_bytes(size_t count) const;

  /// The selection for a whole tensor of `count` elements. Where traits().selects, reads samples
  /// and then as a rule once over the tensor, in order; where not, nothing.
  Selection select(const ReadElements& read, size_t count, const CodecKeys& keys) const;

  /// How many elements of each `granule`, a multiple of 64, are sent by that selection, for codecs
  /// that balance.
  std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                      const Selection& selection, size_t granule) const;

  /// Whether the message of elements [first, first + count) of a tensor of `total` holds those that
  /// are gathered and no others: not all, because that would be no longer, and none that are
  /// selected by neighbours in another message.
  bool sends_gathered_only(const GatheredElements& gathered, size_t first, size_t count,
                           size_t total) const;

  /// The numbers that a message of at least a header's length says it holds.
  static size_t entries(std::span<const std::byte> message);
  /// Whether a message names this codec as its maker.
  bool made(std::span<const std::byte> message) const;

  /// Writes a message of at most `max_bytes(count)` bytes; returns its length.
  size_t encode(const EncodeArguments& arguments, std::byte* message) const;

  /// `out[i]` = what element `first + i` decodes to. Throws Error(kMismatch) where the message is
  /// not one of `count` elements of this codec, or is damaged; `out` may then hold anything.
  void decode(std::span<const std::byte> message, float* out, size_t count, uint64_t first,
              const CodecKeys& keys, const DecodeOptions& options = {}) const;
  /// The same, added to `sum`.
  void decode_add(std::span<const std::byte> message, float* sum, size_t count, uint64_t first,
                  const CodecKeys& keys) const {
    decode(message, sum, count, first, keys, {.store = Store::kAdd});
  }

  // For a body that a device makes or reads (kernels/cuda/codec_kernels.h). Only where
  // `is_value_stage`.

  /// Messages are a header, and all elements as the value stage writes them.
  bool is_value_stage() const;
  /// Of a message of `count` elements. Throws as `decode` does.
  std::span<const std::byte> body_of(std::span<const std::byte> message, size_t count) const;
  /// Writes the header of a message of `count` elements. Returns where its body goes, of
  /// value_bytes(spec().value, count) bytes.
  std::byte* write_header(std::byte* message, size_t count) const;

 private:
  CodecSpec spec_;
  std::string name_;
  uint32_t tag_;  // of the name, in each header
  CodecTraits traits_;
  std::unique_ptr<const Codec> of_sums_;
  mutable std::once_flag error_is_measured_;
  mutable double normal_error_ = 0;
};

}  // namespace q7x2
