// Control messages between the ranks of a group: active messages, small and in order. They travel
// in envelopes (transport/trust/envelope.h).
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace q7x2 {

enum class ControlType : uint8_t {
  kHello = 1,     ///< connects, and asks the other side to connect back, so that both see a failure
  kGoodbye = 2,   ///< the sender left the group in good order
  kAbort = 3,     ///< the group failed; carries the error
  kInquiry = 4,   ///< the sender waits for a message of a collective; carries what it called
  kAnswer = 5,    ///< to an inquiry, and once more when it has changed: how far the sender is
  kLastCall = 6,  ///< the sender begins nothing more; it stays for what it has begun
  kFailedCall = 7,  ///< a collective failed, and the group goes on; carries the error
};

/// How far a rank is with a collective that another rank asked about.
enum class CallState : uint8_t {
  kNotMade = 0,   ///< its program has not made the call
  kWaiting = 1,   ///< in progress
  kComplete = 2,  ///< so is its part
};

/// Of the last collectives that a rank has begun, those that it has not ended: bit i is the
/// collective number `begun` - 1 - i. No older one is in progress (TurnQueue::kMostAhead).
using Unended = std::bitset<256>;

struct Control {
  ControlType type = ControlType::kHello;
  uint16_t slot = 0;         ///< of the group at the receiver
  uint16_t sender_slot = 0;  ///< of the group at the sender
  int32_t sender = -1;       ///< rank
  int32_t receiver = -1;     ///< rank
  uint64_t process = 0;      ///< the sender's, which its envelope tells
  // kAbort and kFailedCall:
  ErrorCode code = ErrorCode::kAborted;
  int32_t subject = -1;  ///< the rank the error is about
  std::string text;
  // kGoodbye and kLastCall: how many collectives the sender has begun in the group.
  // kFailedCall: the number of the collective in the group.
  // kInquiry, whose `text` is the name of the sender's call, and kAnswer, whose `text` is what it
  // did: the collective's number in the group.
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;               ///< kInquiry: of the call; equal on ranks that agree
  CallState state = CallState::kNotMade;  ///< kAnswer; `subject` is whom the sender waits for
  /// kGoodbye: another one follows what the sender sent over the private link.
  bool comes_twice = false;
  Unended unended;  ///< kGoodbye

  std::string encode() const;
  /// Nothing where the bytes are not a control message; such bytes are dropped. `sender`: the
  /// process that has sent it.
  static std::optional<Control> decode(uint64_t sender, std::string_view bytes);
};

}  // namespace q7x2
