// The cryptographic functions that q7x2 needs, from OpenSSL's libcrypto.
//
// All functions throw std::bad_alloc if OpenSSL fails, which happens only if memory is short.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace q7x2 {

/// HMAC-SHA256 (RFC 2104) of all `parts`, concatenated. Any thread.
std::array<std::byte, 32> hmac(std::span<const std::byte> key,
                               std::initializer_list<std::span<const std::byte>> parts);

/// scrypt (RFC 7914), N = 2^14, r = 8, p = 1: takes about 40 ms and 16 MiB, so guessing passwords
/// is slow.
std::array<std::byte, 32> stretched(std::string_view password, std::string_view salt);

/// Compares so that the duration does not depend on the position of the first difference. The
/// lengths are not secret.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace q7x2
