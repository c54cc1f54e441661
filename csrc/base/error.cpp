#include "base/error.h"

namespace q7x2 {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kMismatch:
      return "mismatched call";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerFailed:
      return "peer failed";
    case ErrorCode::kPeerLeft:
      return "peer left";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kTransport:
      return "transport error";
    case ErrorCode::kNotFinite:
      return "not finite";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

}  // namespace q7x2
