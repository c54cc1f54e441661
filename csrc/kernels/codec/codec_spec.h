// CodecSpec: what a codec does to a block of fp32 numbers, as plain numbers, and its name.
//
// A codec is a chain of at most four stages, each with its part of the name:
//
//   select      which elements are sent        topk:0.01  threshold:0.001  randomk:0.01  blocks:0.1
//   rotate      a randomised Hadamard rotation hadamard
//   value       how a number is coded        fp16  int4:g=128:sr  ternary  onebit  sumint8  ...
//   entropy     lossless coding of the bytes   lossless
//
// "topk:0.01+int8+lossless" selects, quantises the selected values, and compresses the bytes.
// Stages that are not named are skipped; numbers without a value stage stay fp32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace q7x2 {

enum class SelectKind : uint8_t {
  kAll,
  kTopK,       ///< the largest `amount` of all elements by magnitude, exactly
  kSampled,    ///< those above a threshold, estimated from a sample as the `amount` largest
  kThreshold,  ///< those of magnitude `amount` or more
  kRandomK,    ///< a random `amount` of all elements, the same on all ranks
  kBlocks,     ///< the `amount` of all blocks of 256 elements with the largest norms
  kNofM,       ///< the `n` largest of each `m` neighbours
  // For sums of selections:
  kNonZero,        ///< all elements except zeros
  kNonZeroBlocks,  ///< all blocks of 256 elements except blocks of zeros
  kReselect,       ///< the largest `amount` of the message's own elements
};

enum class ValueKind : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,  ///< scaled by the largest magnitude of the group, like the next
  kFloat8E5M2,
  kUniform,  ///< `bits` bits, equal steps
  kQsgd,     ///< `bits` bits, equal steps of the group's L2 norm, stochastic
  kTernary,  ///< -1, 0, 1 times the group's largest magnitude, stochastic
  kOneBit,   ///< the sign, times the group's mean magnitude
  kSign,     ///< only the sign, a random one for zeros; sums are votes
  kSumInt,   ///< integers of `bits` bits with a scale that all ranks share; added as integers
};

/// The value stage, and the rotation before it. Plain numbers, so that kernels on any processor can
/// take it as an argument.
struct ValueSpec {
  ValueKind kind = ValueKind::kFloat32;
  uint8_t bits = 32;        ///< per code
  uint16_t group = 0;       ///< elements that share a scale, a power of two; 0: no scales
  bool stochastic = false;  ///< rounds up or down at random, with the right expected value
  /// kUniform: range from the least to the largest number, not from -max to max
  bool minmax = false;
  bool hadamard = false;  ///< groups are rotated before they are coded

  bool operator==(const ValueSpec&) const = default;
};

struct CodecSpec {
  SelectKind select = SelectKind::kAll;
  double amount = 1;      ///< for the select stage: a ratio or a threshold
  int n = 0;              ///< kNofM
  int m = 0;              ///< kNofM
  bool reselect = false;  ///< sums are selected from again, not sent completely
  /// Owners get equal shares of the selected elements, not of all elements.
  bool balanced = false;
  ValueSpec value;
  bool lossless = false;

  bool operator==(const CodecSpec&) const = default;
};

/// Throws Error(kInvalidArgument); its message lists the codecs and the most similar name.
CodecSpec parse_codec(std::string_view name);

/// The name that parses to `spec`, without default values: "int4:g=128".
std::string to_string(const CodecSpec& spec);

/// The names of a stage with their arguments, for help and error texts: "topk:RATIO".
std::vector<std::string> codec_names();

/// Number of elements that share a scale if the name does not say: 512.
inline constexpr uint16_t kDefaultGroup = 512;
inline constexpr uint16_t kLeastGroup = 32;
inline constexpr uint16_t kLargestGroup = 1024;
inline constexpr int kSelectBlock = 256;

}  // namespace q7x2
