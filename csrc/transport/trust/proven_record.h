// Records of fixed length that prove where they come from: hellos on new connections.
//
// A record is trivially copyable, and its last member is `Proof proof`, of all bytes before it.
// The proof is checked before anything else of a record is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/crypto.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

/// The bytes of `record`, with the proof of a message of this kind (see `prove`).
template <typename Record>
std::array<std::byte, sizeof(Record)> with_proof(Record record, const MessageKey& key,
                                                 std::string_view kind) {
  static_assert(std::is_trivially_copyable_v<Record>);
  constexpr size_t kAt = offsetof(Record, proof);
  static_assert(kAt + sizeof(Proof) == sizeof(Record));
  record.proof = prove(key, kind, std::as_bytes(std::span(&record, 1)).first(kAt));
  std::array<std::byte, sizeof(Record)> bytes;
  std::memcpy(bytes.data(), &record, sizeof(record));
  return bytes;
}

/// Nothing if the proof is not that of a message of this kind.
template <typename Record>
std::optional<Record> proven(std::span<const std::byte, sizeof(Record)> bytes,
                             const MessageKey& key, std::string_view kind) {
  constexpr size_t kAt = offsetof(Record, proof);
  if (!equal_in_constant_time(bytes.subspan(kAt), prove(key, kind, bytes.first(kAt)))) {
    return std::nullopt;
  }
  Record record;
  std::memcpy(&record, bytes.data(), sizeof(record));
  return record;
}

}  // namespace q7x2
