// Typed errors: the kind of failure, the peer, and the status of the underlying library.
#pragma once

#include <stdexcept>
#include <string>

namespace q7x2 {

enum class ErrorCode {
  kInvalidArgument,  ///< the caller's arguments cannot be carried out
  kMismatch,         ///< ranks disagree about the call (op, dtype, count, root, ...)
  kTimeout,          ///< a deadline passed
  kPeerFailed,       ///< a peer died or its connection broke
  kPeerLeft,         ///< a peer left the group in good order while it was still needed
  kAborted,          ///< the group was aborted or shut down
  kTransport,        ///< UCX or the operating system refused
  kNotFinite,        ///< a result has infinities or NaNs, which the call refuses
  kInternal,         ///< an invariant of q7x2 does not hold
};

/// The name of `code` as it appears in messages, for example "peer failed".
const char* to_string(ErrorCode code);

/// The type of all errors below the c10d adapters. `rank`: the rank in the group that caused it, or
/// -1.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int rank = -1)
      : std::runtime_error(message), code_(code), rank_(rank) {}

  ErrorCode code() const { return code_; }
  int rank() const { return rank_; }

 private:
  ErrorCode code_;
  int rank_;
};

}  // namespace q7x2
