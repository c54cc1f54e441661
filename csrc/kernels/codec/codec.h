// Codec: encodes a block of fp32 numbers as a message of fewer bytes, and decodes it.
//
// A message is self-contained: its header says which codec made it and for how many elements. The
// decoder checks that, and every count and offset in it, before it uses them. docs/wire_format.md
// describes the layout, byte by byte. Equal inputs give equal messages on every processor.
//
// The error can be kept. With an error buffer e, encode sends C(v + e) and stores v + e - C(v + e)
// in e, in the same pass over memory (error feedback; Seide et al., "1-bit stochastic gradient
// descent", 2014; Karimireddy et al., "Error feedback fixes SignSGD", 2019).
//
// This requires that C(v) is closer to v than zero is. Unbiased codes with few levels are not, and
// their error would grow without bound. So with an error buffer all rounding is to nearest, and
// scales minimise the error.
//
// Numbers that are not finite reach every receiver: their group decodes to NaN. (A selection sends
// them unchanged, before all others; a cast keeps them.) The errors of their group do not change.
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
  /// C(a) + C(b) is the code of a + b, so any Plan may add messages. Otherwise an owner decodes and
  /// adds.
  bool linear = false;
  /// If no error is kept: the expected value of the decoded number, over the random numbers, is the
  /// encoded number.
  bool unbiased = false;
  /// Zeros decode to zeros, for any other values in their group.
  bool keeps_zeros = true;
  /// A message's length depends only on the number of elements.
  bool fixed_size = true;
  /// An error buffer can be used.
  bool keeps_error = true;
  /// An owner's own contribution must go through the codec like those of others (selections and
  /// votes). Otherwise it is added exactly.
  bool codes_own = false;
  /// Sums of decoded numbers are encoded exactly: they may be encoded any number of times.
  bool exact_sums = false;
  /// `select` must read the whole tensor first.
  bool selects = false;
  /// Bits per element of a message, for planning; for selections those of a contribution.
  double bits = 32;
};

class Codec {
 public:
  /// Throws the errors of parse_codec.
  static std::shared_ptr<const Codec> make(const std::string& name);
  explicit Codec(const CodecSpec& spec);

  /// In the form of `to_string`.
  const std::string& name() const { return name_; }
  const CodecSpec& spec() const { return spec_; }
  const CodecTraits& traits() const { return traits_; }
  /// If false, its integers are added as such, with scales that all ranks agree on:
  /// kernels/codec/sum_int.h.
  bool has_messages() const;
  /// |v - C(v)| / |v| (L2) for a vector of normal numbers. Measured at the first call; 0 if it has
  /// no messages. docs/codecs.md has the formulas.
  double normal_error() const;
  /// |v - C(v)|^2 for `count` numbers, encoded as one message. Requires a codec with messages.
  double squared_error(const float* values, size_t count) const;
  /// Bits per element of a message that is the sum of this many contributions, for planning.
  double sum_bits(int contributions) const;
  /// The share of the elements that such a message contains.
  double sum_share(int contributions) const;
  /// The codec with which an owner sends a sum; for selections it sends all non-zero elements.
  const Codec& of_sums() const { return of_sums_ ? *of_sums_ : *this; }

  /// The largest length of a message of `count` elements, in bytes.
  size_t max_bytes(size_t count) const;

  /// The selection for a whole tensor of `count` elements. If traits().selects, reads samples and
  /// then usually the whole tensor once, in order; otherwise reads nothing.
  Selection select(const ReadElements& read, size_t count, const CodecKeys& keys) const;

  /// How many of each `granule` elements (a multiple of 64) that selection sends, for codecs that
  /// balance.
  std::vector<int32_t> count_selected(const ReadElements& read, size_t count,
                                      const Selection& selection, size_t granule) const;

  /// Whether the message of elements [first, first + count) of a tensor of `total` contains exactly
  /// the gathered ones of them. It is not so if the message contains all elements, because that is
  /// no longer, nor if the elements are selected together with neighbours in another message.
  bool sends_gathered_only(const GatheredElements& gathered, size_t first, size_t count,
                           size_t total) const;

  /// The number of numbers that a message says it contains. It must have at least a header's
  /// length.
  static size_t entries(std::span<const std::byte> message);
  /// Whether a message says that this codec made it.
  bool made(std::span<const std::byte> message) const;

  /// Writes a message of at most `max_bytes(count)` bytes; returns its length.
  size_t encode(const EncodeArguments& arguments, std::byte* message) const;

  /// `out[i]` = decoded element `first + i`. Throws Error(kMismatch) if the message is not one of
  /// `count` elements of this codec, or is damaged; `out` may then contain anything.
  void decode(std::span<const std::byte> message, float* out, size_t count, uint64_t first,
              const CodecKeys& keys, const DecodeOptions& options = {}) const;
  /// The same, added to `sum`.
  void decode_add(std::span<const std::byte> message, float* sum, size_t count, uint64_t first,
                  const CodecKeys& keys) const {
    decode(message, sum, count, first, keys, {.store = Store::kAdd});
  }

  // For a body that a device writes or reads (kernels/cuda/codec_kernels.h). Requires
  // `is_value_stage`.

  /// Whether messages are a header, followed by all elements in the format of the value stage.
  bool is_value_stage() const;
  /// The body of a message of `count` elements. Throws the errors of `decode`.
  std::span<const std::byte> body_of(std::span<const std::byte> message, size_t count) const;
  /// Writes the header of a message of `count` elements. Returns the start of its body, which has
  /// value_bytes(spec().value, count) bytes.
  std::byte* write_header(std::byte* message, size_t count) const;

 private:
  CodecSpec spec_;
  std::string name_;
  uint32_t tag_;  // hash of the name, in each header
  CodecTraits traits_;
  std::unique_ptr<const Codec> of_sums_;
  mutable std::once_flag error_is_measured_;
  mutable double normal_error_ = 0;
};

}  // namespace q7x2
