// What the processes of a PeerBootstrap send each other; transport/bootstrap/peer_bootstrap.h has
// the protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace q7x2 {

enum class BootstrapKind : uint8_t {
  kPieces = 1,  ///< a round's pieces of an exchange
  kAsk,         ///< the sender still waits for the pieces of a round
  kWaiting,     ///< the answer if they are not there yet: whom the answerer waits for itself
  kRefusal,     ///< the key was used before
  kFailure,     ///< the bootstrap cannot succeed, and why
  kReady,       ///< the sender has made its part, and does what the leader decides
  kAskReady,    ///< the leader does not know yet whether the receiver has
  kCommit,      ///< the bootstrap has succeeded
};

struct BootstrapMessage {
  BootstrapKind kind = BootstrapKind::kPieces;
  std::string key;       ///< which bootstrap: its scope and name
  uint64_t attempt = 0;  ///< number among the attempts with this key
  /// The first of the attempts before this one that all failed at the sender.
  uint64_t failed_since = 0;
  std::string peer_info;  ///< the sender's, encoded, so that it can be answered
  uint64_t process = 0;   ///< the sender's
  uint64_t list = 0;      ///< digest of the members, in their order
  // kPieces, kAsk, kWaiting:
  std::string exchange;
  int round = 0;
  std::string body;     ///< kPieces: packed, see `pack_pieces`
  std::string members;  ///< kPieces: the members as the sender calls them, for messages
  // kWaiting: the member; kFailure: the rank that the error is about. -1: none.
  int subject = -1;
  // kFailure, kRefusal:
  ErrorCode code = ErrorCode::kAborted;
  std::string text;

  std::string encode() const;
  /// Nothing where the bytes are something else; such bytes are dropped. The body is not unpacked.
  static std::optional<BootstrapMessage> decode(std::string_view bytes);
};

std::string pack_pieces(const std::vector<std::string>& pieces);
/// Throws Error(kMismatch) unless `body` has `count` pieces.
std::vector<std::string> unpack_pieces(const std::string& body, int count);

}  // namespace q7x2
