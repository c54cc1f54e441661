// Byte planes, the estimate whether packing pays, and zstd.
#include "kernels/codec/entropy.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "kernels/codec/value_codec.h"

namespace q7x2 {
namespace {

constexpr size_t kSamples = 512;
constexpr size_t kLeastPlane = 256;  // a frame and its table take about a dozen bytes
// If a plane packs to 0.96 of its length, two of its bytes are equal with at least this
// probability: 2^-(0.96 * 8).
constexpr double kLeastCollisions = 1.0 / 205;
using Length = uint32_t;

constexpr size_t kMostPlanes = 6;  // four of fp32 or of scales, one of codes, one of indices

/// An array of a body, which is split into `width` planes of `count` bytes.
struct Section {
  size_t count;
  size_t width;
};

std::array<Section, 3> sections_of(const ValueSpec& spec, size_t entries, size_t bytes) {
  const size_t values = value_bytes(spec, entries);
  const Section indices = {bytes - values, 1};
  if (spec.group == 0) {
    const size_t width = spec.bits / 8;
    return {{{entries, width}, indices, {0, 0}}};
  }
  const size_t scales = (entries + spec.group - 1) / spec.group * (spec.minmax ? 2 : 1);
  return {{{scales, sizeof(float)}, {values - scales * sizeof(float), 1}, indices}};
}

/// Byte `plane` of number `index`, with the sign after the mantissa.
template <class Bits>
uint8_t plane_byte(const std::byte* numbers, size_t index, size_t plane) {
  Bits bits;
  std::memcpy(&bits, numbers + index * sizeof(bits), sizeof(bits));
  if constexpr (sizeof(bits) > 1) bits = std::rotl(bits, 1);
  return static_cast<uint8_t>(bits >> (8 * (sizeof(bits) - 1 - plane)));
}

template <class Bits>
void split_plane(const std::byte* numbers, size_t count, size_t plane, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = plane_byte<Bits>(numbers, i, plane);
}

template <class Bits>
void join_planes(const uint8_t* planes, size_t count, std::byte* numbers) {
  for (size_t i = 0; i < count; ++i) {
    Bits bits = 0;
    for (size_t plane = 0; plane < sizeof(bits); ++plane) {
      bits = static_cast<Bits>(bits << 8 | planes[plane * count + i]);
    }
    if constexpr (sizeof(bits) > 1) bits = std::rotr(bits, 1);
    std::memcpy(numbers + i * sizeof(bits), &bits, sizeof(bits));
  }
}

template <class Bits>
bool plane_pays(const std::byte* numbers, size_t count, size_t plane) {
  if (count < kLeastPlane) return false;
  const size_t samples = std::min(count, kSamples);
  std::array<uint32_t, 256> seen{};
  uint32_t equal_pairs = 0;
  for (size_t i = 0; i < samples; ++i) {
    equal_pairs += seen[plane_byte<Bits>(numbers, i * count / samples, plane)]++;
  }
  const double pairs = static_cast<double>(samples) * static_cast<double>(samples - 1) / 2;
  return equal_pairs > kLeastCollisions * pairs;
}

/// Calls `visit` with the unsigned type of `width` bytes.
template <class Visit>
auto with_width(size_t width, const Visit& visit) {
  switch (width) {
    case 4:
      return visit(uint32_t{});
    case 2:
      return visit(uint16_t{});
    default:
      return visit(uint8_t{});
  }
}

/// zstd's state, and buffers that only grow; one per thread.
class Packer {
 public:
  static Packer& own() {
    thread_local Packer packer;
    return packer;
  }

  template <class T>
  static T* room(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
  }

  /// The length of the frame in `out`, or `count` if it would not be shorter.
  size_t compress(const uint8_t* plane, size_t count, std::byte* out) {
    const size_t length = ZSTD_compress2(compressor_.get(), out, count - 1, plane, count);
    return ZSTD_isError(length) != 0 ? count : length;
  }

  bool decompress(std::span<const std::byte> frame, uint8_t* plane, size_t count) {
    return ZSTD_decompressDCtx(decompressor_.get(), plane, count, frame.data(), frame.size()) ==
           count;
  }

  std::vector<uint8_t> planes;
  std::vector<std::byte> packed;
  std::vector<std::byte> body;

 private:
  Packer() {
    if (compressor_ == nullptr || decompressor_ == nullptr) throw std::bad_alloc();
    constexpr std::array kParameters = {std::pair{ZSTD_c_compressionLevel, 1},
                                        std::pair{ZSTD_c_minMatch, 7}, std::pair{ZSTD_c_hashLog, 6},
                                        std::pair{ZSTD_c_contentSizeFlag, 0}};
    for (const auto& [parameter, value] : kParameters) {
      ZSTD_CCtx_setParameter(compressor_.get(), parameter, value);
    }
  }

  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, Free> compressor_{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, Free> decompressor_{ZSTD_createDCtx()};
};

/// A bit for each plane of a body, in order: whether packing it pays.
uint32_t paying_planes(std::span<const Section> sections, const std::byte* body) {
  uint32_t paying = 0;
  uint32_t bit = 1;
  for (const Section& section : sections) {
    for (size_t plane = 0; plane < section.width; ++plane, bit <<= 1) {
      const bool pays = with_width(section.width, [&](auto bits) {
        return plane_pays<decltype(bits)>(body, section.count, plane);
      });
      paying |= pays ? bit : 0;
    }
    body += section.count * section.width;
  }
  return paying;
}

void store_length(std::byte* at, size_t length) {
  const auto stored = static_cast<Length>(length);
  std::memcpy(at, &stored, sizeof(stored));
}

size_t load_length(const std::byte* at) {
  Length stored;
  std::memcpy(&stored, at, sizeof(stored));
  return stored;
}

}  // namespace

std::optional<size_t> pack_body(const ValueSpec& spec, size_t entries, std::span<std::byte> body) {
  const std::array<Section, 3> sections = sections_of(spec, entries, body.size());
  uint32_t paying = paying_planes(sections, body.data());
  if (paying == 0) return std::nullopt;
  Packer& packer = Packer::own();
  std::byte* const packed =
      Packer::room(packer.packed, body.size() + (1 + kMostPlanes) * sizeof(Length));
  store_length(packed, body.size());
  std::byte* out = packed + sizeof(Length);
  const std::byte* numbers = body.data();
  for (const Section& section : sections) {
    uint8_t* const split = Packer::room(packer.planes, section.count);
    for (size_t plane = 0; plane < section.width; ++plane, paying >>= 1) {
      with_width(section.width, [&](auto bits) {
        split_plane<decltype(bits)>(numbers, section.count, plane, split);
      });
      std::byte* const bytes = out + sizeof(Length);
      size_t length = section.count;
      if ((paying & 1) != 0) length = packer.compress(split, section.count, bytes);
      if (length == section.count) std::copy_n(split, length, reinterpret_cast<uint8_t*>(bytes));
      store_length(out, length);
      out = bytes + length;
    }
    numbers += section.count * section.width;
  }
  const auto length = static_cast<size_t>(out - packed);
  if (length >= body.size()) return std::nullopt;
  std::memcpy(body.data(), packed, length);
  return length;
}

std::optional<std::span<const std::byte>> unpack_body(const ValueSpec& spec, size_t entries,
                                                      std::span<const std::byte> packed,
                                                      size_t most) {
  if (packed.size() < sizeof(Length)) return std::nullopt;
  const size_t bytes = load_length(packed.data());
  if (bytes > most || bytes < value_bytes(spec, entries)) return std::nullopt;
  packed = packed.subspan(sizeof(Length));
  Packer& packer = Packer::own();
  std::byte* const body = Packer::room(packer.body, bytes);
  std::byte* numbers = body;
  for (const Section& section : sections_of(spec, entries, bytes)) {
    uint8_t* const planes = Packer::room(packer.planes, section.count * section.width);
    for (size_t plane = 0; plane < section.width; ++plane) {
      if (packed.size() < sizeof(Length)) return std::nullopt;
      const size_t length = load_length(packed.data());
      packed = packed.subspan(sizeof(Length));
      if (length > section.count || length > packed.size()) return std::nullopt;
      uint8_t* const split = planes + plane * section.count;
      if (length == section.count) {
        std::copy_n(reinterpret_cast<const uint8_t*>(packed.data()), length, split);
      } else if (!packer.decompress(packed.first(length), split, section.count)) {
        return std::nullopt;
      }
      packed = packed.subspan(length);
    }
    with_width(section.width,
               [&](auto bits) { join_planes<decltype(bits)>(planes, section.count, numbers); });
    numbers += section.count * section.width;
  }
  if (!packed.empty()) return std::nullopt;
  return std::span<const std::byte>(body, bytes);
}

}  // namespace q7x2
