// What the ranks of a new group write in the store.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace q7x2 {

/// What a rank publishes when it joins: its peer info, or why it cannot make the group.
struct JoinRecord {
  std::string nonce;  ///< tells its process from others of the same rank
  int size = 0;       ///< the world size that it was told
  std::optional<Error> failure;
  std::string peer_info;

  std::string encode() const;
  /// Throws Error(kMismatch) where `bytes` is something else.
  static JoinRecord decode(const std::string& bytes);
};

/// What several ranks publish, as one text: a sequence of entries.
std::string encode_entry(int rank, const std::string& bytes);
/// What each of ranks 0 ... size - 1 has published. Throws Error(kMismatch) where one is missing or
/// there are others.
std::vector<std::string> decode_bundle(std::string_view bundle, int size);
/// The entries of any ranks, which must be records. Throws Error(kMismatch).
std::map<int, JoinRecord> records_of(std::string_view bundle);

/// What ranks 0 ... size - 1 have published when they joined. Throws Error(kMismatch) where one is
/// missing or there are others.
std::vector<std::string> sealed_peer_infos_of(const std::map<int, JoinRecord>& roster, int size);

/// Compressed: the peer infos of a group are much alike, and every rank reads them all.
std::string pack(const std::string& bytes);
/// Throws Error(kMismatch) where `packed` is something else.
std::string unpack(const std::string& packed);

/// How far the ranks have come, in the one key that all of them read.
struct EpochState {
  enum class Phase : uint8_t {
    kNone,       ///< nobody has written anything
    kOpen,       ///< ranks may join; the body is rank 0's entry
    kRoster,     ///< all have joined; the body is what they gave
    kCommitted,  ///< all have confirmed the roster; the body is rank 0's world size
    kExchanged,  ///< the body is what all gave in the exchange `what`
    kFailed,     ///< the body is the failure
    kOrphaned,   ///< rank 0 has died; the body is the failure
  };

  int64_t epoch = 0;
  Phase phase = Phase::kNone;
  std::string what = {};
  std::string body = {};
  bool is_elsewhere = false;  ///< the body is long, and has a key of its own

  std::string encode() const;
  /// Throws Error(kMismatch) where `bytes` is something else.
  static EpochState decode(const std::string& bytes);
};

std::string encode_failure(const Error& failure);
/// Throws Error(kMismatch) where `bytes` is something else.
Error decode_failure(const std::string& bytes);
/// Throws Error(kMismatch): the store holds something else than q7x2 writes.
[[noreturn]] void refuse_bytes();

}  // namespace q7x2
