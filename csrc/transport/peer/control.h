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
#include "transport/stream/incoming_message.h"
#include "transport/ucx/request.h"

namespace q7x2 {

enum class ControlType : uint8_t {
  kHello = 1,     ///< connects, and asks the other side to connect back, so that both see a failure
  kGoodbye = 2,   ///< the sender left the group in good order
  kAbort = 3,     ///< the group failed; carries the error
  kInquiry = 4,   ///< the sender waits for a message of a collective; carries the name of its call
  kAnswer = 5,    ///< to an inquiry, and again when it changes: the progress of the sender
  kLastCall = 6,  ///< the sender begins nothing more, but completes what it has begun
  kFailedCall = 7,  ///< a collective failed, and the group goes on; carries the error
};

/// The progress of a rank in a collective that another rank has asked about.
enum class CallState : uint8_t {
  kNotMade = 0,   ///< its program has not made the call
  kWaiting = 1,   ///< in progress
  kComplete = 2,  ///< its part is complete
};

/// The last collectives that a rank has begun and not ended: bit i stands for collective number
/// `begun` - 1 - i. No older collective is in progress (TurnQueue::kMostAhead).
using Unended = std::bitset<256>;

struct Control {
  ControlType type = ControlType::kHello;
  uint16_t slot = 0;         ///< the group's slot at the receiver
  uint16_t sender_slot = 0;  ///< the group's slot at the sender
  int32_t sender = -1;       ///< rank
  int32_t receiver = -1;     ///< rank
  uint64_t process = 0;      ///< the sender's process number, from the envelope
  // kAbort and kFailedCall:
  ErrorCode code = ErrorCode::kAborted;
  int32_t subject = -1;  ///< the rank that the error concerns
  std::string text;
  // kGoodbye and kLastCall: number of collectives that the sender has begun in the group.
  // kFailedCall: number of the collective in the group.
  // kInquiry and kAnswer: number of the collective in the group. `text` is the name of the sender's
  // call in an inquiry, and what the sender did in an answer.
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;  ///< kInquiry: identifies the call; equal on ranks that agree
  /// kAnswer; `subject` is the rank that the sender waits for
  CallState state = CallState::kNotMade;
  /// kGoodbye: a second one follows the messages that were sent over another link.
  bool comes_twice = false;
  Unended unended;  ///< kGoodbye

  // How it has come, which is not encoded.
  Wire wire = Wire::kShared;
  StreamNotice::Turn turn = StreamNotice::Turn::kInOrder;

  std::string encode() const;
  /// Returns nothing if the bytes are no control message; such bytes are dropped. `sender`: number
  /// of the process that has sent them.
  static std::optional<Control> decode(uint64_t sender, std::string_view bytes);
};

}  // namespace q7x2
