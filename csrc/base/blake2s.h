// BLAKE2s: a cryptographic hash of 32 bytes, with or without a key (RFC 7693).
//
// With a key it is a message authentication code by itself, so it needs no HMAC around it. It is
// built for processors without instructions for hashing: about 1 us for 256 bytes. Libraries that
// have it would be one more dependency of the wheel, for these hundred lines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace q7x2 {

class Blake2s {
 public:
  static constexpr size_t kMostBytes = 32;

  /// `bytes`: the length of the hash, 1 to 32. `key`: at most 32 bytes; empty: none.
  explicit Blake2s(size_t bytes = kMostBytes, std::span<const std::byte> key = {});

  void add(std::span<const std::byte> data);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  /// In little endian.
  void add(uint64_t number);
  /// Writes the hash. Once. `hash` has the length that the constructor was given.
  void finish(std::span<std::byte> hash);

 private:
  static constexpr size_t kBlock = 64;

  void compress(bool is_last);

  const size_t bytes_;
  std::array<uint32_t, 8> state_;
  std::array<std::byte, kBlock> block_{};
  size_t filled_ = 0;    // bytes of the block
  uint64_t hashed_ = 0;  // bytes in blocks before it
};

/// Compares without telling by its duration where the first difference is. The lengths are no
/// secret.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace q7x2
