// Messages: their header, its checks, and the way through the stages.
#include "kernels/codec.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "kernels/value_codec.h"

namespace q7x2 {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

constexpr uint8_t kVersion = 1;

struct Header {
  uint8_t version = kVersion;
  uint8_t flags = 0;
  uint16_t zero = 0;
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

CodecTraits traits_of(const CodecSpec& spec) {
  const ValueSpec& value = spec.value;
  CodecTraits traits;
  traits.bits = value.bits;
  if (value.group > 0) traits.bits += (value.minmax ? 64.0 : 32.0) / value.group;
  traits.unbiased = value.stochastic || value.kind == ValueKind::kFloat32 || value.hadamard;
  traits.linear = value.kind == ValueKind::kSumInt;
  traits.codes_own = value.kind == ValueKind::kSign;
  traits.keeps_error = value.kind != ValueKind::kSign;
  return traits;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::kMismatch, "a message for codec '" + name + "' " + what);
}

}  // namespace

std::shared_ptr<const Codec> Codec::make(const std::string& name) {
  return std::make_shared<const Codec>(parse_codec(name));
}

Codec::Codec(const CodecSpec& spec)
    : spec_(spec), name_(to_string(spec)), tag_(tag_of(name_)), traits_(traits_of(spec)) {
  if (spec.select != SelectKind::kAll || spec.lossless) {
    throw Error(ErrorCode::kInvalidArgument, "codec '" + name_ + "' is not available");
  }
}

size_t Codec::max_bytes(size_t count) const {
  return sizeof(Header) + value_bytes(spec_.value, count);
}

Selection Codec::select(const ReadElements&, size_t, const CodecKeys&) const {
  return {};
}

size_t Codec::encode(const EncodeArguments& arguments, std::byte* message) const {
  Header header;
  header.tag = tag_;
  header.count = static_cast<uint32_t>(arguments.count);
  header.entries = header.count;
  std::memcpy(message, &header, sizeof(header));
  dispatched_value_kernels().encode(
      spec_.value,
      {arguments.values, arguments.count, arguments.first, arguments.add, arguments.error,
       arguments.error_scale, arguments.keys.shared, arguments.keys.rounding},
      message + sizeof(header));
  return max_bytes(arguments.count);
}

std::span<const std::byte> Codec::checked_body(std::span<const std::byte> message,
                                               size_t count) const {
  Header header;
  if (message.size() < sizeof(header)) {
    refuse(name_, "has " + std::to_string(message.size()) + " bytes, less than its header");
  }
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.version != kVersion) {
    refuse(name_, "has version " + std::to_string(header.version) + ", expected " +
                      std::to_string(kVersion));
  }
  if (header.tag != tag_ || header.flags != 0 || header.zero != 0) {
    refuse(name_, "was made by another codec");
  }
  if (header.count != count || header.entries != count) {
    refuse(name_, "is of " + std::to_string(header.count) + " elements, expected " +
                      std::to_string(count));
  }
  if (message.size() != max_bytes(count)) {
    refuse(name_, "of " + std::to_string(count) + " elements has " +
                      std::to_string(message.size()) + " bytes, expected " +
                      std::to_string(max_bytes(count)));
  }
  return message.subspan(sizeof(header));
}

void Codec::decode(std::span<const std::byte> message, float* out, size_t count, uint64_t first,
                   const CodecKeys& keys) const {
  const std::span<const std::byte> body = checked_body(message, count);
  dispatched_value_kernels().decode(spec_.value, body.data(), out, count, first, keys.shared,
                                    false);
}

void Codec::decode_add(std::span<const std::byte> message, float* sum, size_t count, uint64_t first,
                       const CodecKeys& keys) const {
  const std::span<const std::byte> body = checked_body(message, count);
  dispatched_value_kernels().decode(spec_.value, body.data(), sum, count, first, keys.shared, true);
}

}  // namespace q7x2
