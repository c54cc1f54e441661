// Messages: their header, its checks, and the sequence of stages.
#include "kernels/codec/codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "base/error.h"
#include "kernels/codec/entropy.h"
#include "kernels/codec/random.h"
#include "kernels/codec/sparse.h"
#include "kernels/codec/sparse_select.h"
#include "kernels/codec/value_codec.h"

namespace q7x2 {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

constexpr uint8_t kVersion = 1;
constexpr uint8_t kPacked = 1;  // a flag: the body was compressed by the entropy stage

struct Header {
  uint8_t version = kVersion;
  uint8_t flags = 0;
  Layout layout = Layout::kDense;
  uint8_t zero = 0;
  uint32_t tag = 0;
  uint32_t count = 0;    ///< elements of the block
  uint32_t entries = 0;  ///< numbers in the body
};
static_assert(sizeof(Header) == 16);

uint32_t tag_of(const std::string& name) {  // FNV-1a
  uint32_t hash = 0x811C9DC5;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193;
  return hash;
}

/// Bits per element, including its part of the scales.
double value_bits(const ValueSpec& value) {
  const double scales = value.group > 0 ? (value.minmax ? 64.0 : 32.0) / value.group : 0;
  return value.bits + scales;
}

CodecTraits traits_of(const CodecSpec& spec) {
  const ValueSpec& value = spec.value;
  CodecTraits traits;
  traits.bits = value_bits(value);
  const bool is_sign = value.kind == ValueKind::kSign;
  traits.unbiased = !is_sign && (value.stochastic || value.kind == ValueKind::kFloat32);
  traits.keeps_zeros =
      !is_sign && value.kind != ValueKind::kOneBit && !value.minmax && !value.hadamard;
  traits.linear = value.kind == ValueKind::kSumInt;
  traits.codes_own = is_sign;
  traits.keeps_error = !is_sign;
  traits.fixed_size = spec.select == SelectKind::kAll && !spec.lossless;
  if (spec.select == SelectKind::kAll) return traits;
  traits.bits = sparse_bits(spec, traits.bits);
  traits.unbiased = false;
  traits.codes_own = true;
  traits.exact_sums = value.kind == ValueKind::kFloat32 && !spec.reselect;
  traits.selects = spec.select == SelectKind::kTopK || spec.select == SelectKind::kSampled ||
                   spec.select == SelectKind::kBlocks;
  return traits;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kMismatch, "a message for codec '" + name + "' " + what);
}

/// The header of a message of `count` elements, which must come from the codec `name` with `tag`.
Header checked_header(const CodecSpec& spec, const std::string& name, uint32_t tag,
                      std::span<const std::byte> message, size_t count) {
  Header header;
  if (message.size() < sizeof(header)) {
    refuse(name, "has " + std::to_string(message.size()) + " bytes, less than its header");
  }
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.version != kVersion) {
    refuse(name, "has version " + std::to_string(header.version) + ", expected " +
                     std::to_string(kVersion));
  }
  const uint8_t known_flags = spec.lossless ? kPacked : 0;
  if (header.tag != tag || (header.flags & ~known_flags) != 0 || header.zero != 0) {
    refuse(name, "was made by another codec");
  }
  if (header.count != count || header.entries > count) {
    refuse(name, "is of " + std::to_string(header.count) + " elements, expected " +
                     std::to_string(count));
  }
  return header;
}

[[noreturn]] void refuse_body(const std::string& name, const Header& header, size_t bytes) {
  refuse(name, "of " + std::to_string(header.count) + " elements is damaged: its " +
                   std::to_string(bytes) + " bytes are not those of " +
                   std::to_string(header.entries) + " numbers in a layout of this codec");
}

/// Numbers that follow a normal distribution.
const std::vector<float>& normal_sample() {
  static const std::vector<float> sample = [] {
    std::vector<float> values(size_t{1} << 13);
    const RandomStream stream = random_stream(0, 0);
    for (uint32_t i = 0; i < values.size(); ++i) {  // Box and Muller
      const double radius = std::sqrt(-2 * std::log(1.0 - random_unit(stream, 2 * i)));
      const double angle = 2 * std::numbers::pi * random_unit(stream, 2 * i + 1);
      values[i] = static_cast<float>(radius * std::cos(angle));
    }
    return values;
  }();
  return sample;
}

}  // namespace

std::shared_ptr<const Codec> Codec::make(const std::string& name) {
  return std::make_shared<const Codec>(parse_codec(name));
}

Codec::Codec(const CodecSpec& spec)
    : spec_(spec), name_(to_string(spec)), tag_(tag_of(name_)), traits_(traits_of(spec)) {
  const CodecSpec sums = spec_of_sums(spec);
  if (sums != spec) of_sums_ = std::make_unique<const Codec>(sums);
}

double Codec::normal_error() const {
  std::call_once(error_is_measured_, [this] {
    if (!has_messages()) return;
    const std::vector<float>& sample = normal_sample();
    const double all = std::inner_product(sample.begin(), sample.end(), sample.begin(), 0.0);
    normal_error_ = std::sqrt(squared_error(sample.data(), sample.size()) / all);
  });
  return normal_error_;
}

double Codec::squared_error(const float* values, size_t count) const {
  const CodecKeys keys;
  const auto read = [values](size_t first, size_t) { return values + first; };
  std::vector<std::byte> message(max_bytes(count));
  message.resize(encode(
      {.values = values, .count = count, .selection = select(read, count, keys), .keys = keys},
      message.data()));
  std::vector<float> decoded(count);
  decode(message, decoded.data(), count, 0, keys);
  double error = 0;
  for (size_t i = 0; i < count; ++i) {
    error += std::pow(static_cast<double>(values[i]) - decoded[i], 2);
  }
  return error;
}

size_t Codec::max_bytes(size_t count) const {
  return sizeof(Header) + value_bytes(spec_.value, count);
}

Selection Codec::select(const ReadElements& read, size_t count, const CodecKeys& keys) const {
  switch (spec_.select) {
    case SelectKind::kTopK:
      return select_largest(read, count, selected_count(spec_.amount, count), keys.shared);
    case SelectKind::kSampled:
      return select_sampled(read, count, spec_.amount, keys.shared);
    case SelectKind::kBlocks:
      return select_blocks(read, count, spec_.amount, keys.shared);
    default:
      return {};
  }
}

std::vector<int32_t> Codec::count_selected(const ReadElements& read, size_t count,
                                           const Selection& selection, size_t granule) const {
  const bool by_threshold = spec_.select == SelectKind::kThreshold;
  return q7x2::count_selected(read, count,
                              by_threshold ? select_threshold(spec_.amount) : selection, granule);
}

bool Codec::sends_gathered_only(const GatheredElements& gathered, size_t first, size_t count,
                                size_t total) const {
  if (spec_.select == SelectKind::kNofM) {
    const auto m = static_cast<size_t>(spec_.m);
    const size_t end = first + count;
    if (first % m != 0 || (end % m != 0 && end != total)) return false;
  }
  return is_surely_sparse(spec_, gathered.count_between(first, first + count), count);
}

size_t Codec::entries(std::span<const std::byte> message) {
  Header header;
  if (message.size() < sizeof(header)) return 0;
  std::memcpy(&header, message.data(), sizeof(header));
  return header.entries;
}

double Codec::sum_bits(int contributions) const {
  if (spec_.select == SelectKind::kAll) return traits_.bits;
  return sparse_sum_bits(spec_, value_bits(spec_.value), contributions);
}

double Codec::sum_share(int contributions) const {
  return spec_.select == SelectKind::kAll ? 1 : sparse_share(spec_, contributions);
}

bool Codec::made(std::span<const std::byte> message) const {
  Header header;
  if (message.size() < sizeof(header)) return false;
  std::memcpy(&header, message.data(), sizeof(header));
  return header.tag == tag_;
}

bool Codec::has_messages() const {
  return spec_.value.kind != ValueKind::kSumInt;
}

size_t Codec::encode(const EncodeArguments& arguments, std::byte* message) const {
  if (!has_messages()) {
    throw Error(ErrorCode::kInvalidArgument,
                "codec '" + name_ + "' has no messages: ranks agree on scales, and add integers");
  }
  std::byte* const body = message + sizeof(Header);
  const SparseBody made = encode_sparse(spec_, arguments, body);
  Header header;
  header.tag = tag_;
  header.count = static_cast<uint32_t>(arguments.count);
  header.layout = made.shape.layout;
  header.entries = made.shape.entries;
  size_t bytes = made.bytes;
  if (spec_.lossless) {
    const auto packed = pack_body(spec_.value, header.entries, {body, bytes});
    header.flags = packed ? kPacked : 0;
    bytes = packed.value_or(bytes);
  }
  std::memcpy(message, &header, sizeof(header));
  return sizeof(header) + bytes;
}

void Codec::decode(std::span<const std::byte> message, float* out, size_t count, uint64_t first,
                   const CodecKeys& keys, const DecodeOptions& options) const {
  if (!has_messages()) refuse(name_, "does not exist: ranks agree on scales, and add integers");
  const Header header = checked_header(spec_, name_, tag_, message, count);
  std::optional<std::span<const std::byte>> body = message.subspan(sizeof(header));
  if (header.flags == kPacked) {
    body = unpack_body(spec_.value, header.entries, *body, value_bytes(spec_.value, count));
  }
  const SparseShape shape = {header.layout, header.entries};
  if (!body || !decode_sparse(spec_, shape, *body, out, count, first, keys, options)) {
    refuse_body(name_, header, message.size());
  }
}

bool Codec::is_value_stage() const {
  return spec_.select == SelectKind::kAll && !spec_.lossless && has_messages();
}

std::span<const std::byte> Codec::body_of(std::span<const std::byte> message, size_t count) const {
  const Header header = checked_header(spec_, name_, tag_, message, count);
  const std::span<const std::byte> body = message.subspan(sizeof(header));
  if (header.layout != Layout::kDense || header.entries != count ||
      body.size() != value_bytes(spec_.value, count)) {
    refuse_body(name_, header, message.size());
  }
  return body;
}

std::byte* Codec::write_header(std::byte* message, size_t count) const {
  Header header;
  header.tag = tag_;
  header.count = header.entries = static_cast<uint32_t>(count);
  std::memcpy(message, &header, sizeof(header));
  return message + sizeof(header);
}

}  // namespace q7x2
