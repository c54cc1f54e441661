// What the ranks of a rendezvous write in the store.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace q7x2 {

/// What a rank publishes when it joins: its card, or why it cannot make the group.
struct JoinRecord {
  std::string nonce;  ///< tells its process from others of the same rank
  int size = 0;       ///< the world size that it was told
  std::optional<Error> failure;
  std::string card;

  std::string encode() const;
  /// Throws Error(kMismatch) where `bytes` is something else.
  static JoinRecord decode(const std::string& bytes);
};

std::string encode_failure(const Error& failure);
/// Throws Error(kMismatch) where `bytes` is something else.
Error decode_failure(const std::string& bytes);
/// Throws Error(kMismatch): the store holds something else than q7x2 writes.
[[noreturn]] void refuse_bytes();

}  // namespace q7x2
