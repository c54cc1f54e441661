// HeartbeatHello: what is said on a heartbeat connection, in both directions.
//
//   caller --> hello: who calls whom, a number, a proof --> listener
//   caller <-- hello: who answers whom, the same number, a proof <-- listener
//   caller --> bytes that say nothing, for the kernel to acknowledge --> listener
//   caller <-- hello with the same number, which ends the connection <-- listener
//
// A call with which a process gives up the connection (BreakNotice) has no answer, and one that
// asks to be let connect (AdmissionRequests) is closed when that is so.
//
// Anybody can connect to a port. Each side shows that it knows the listener's key
// (transport/trust/job_secret.h). The proof is checked before anything else of a hello is read. A
// caller uses each number once, and the numbers go up, so hellos that were recorded are worth
// nothing. Bytes that are no hello for this process end the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/trust/job_secret.h"

namespace q7x2 {

struct HeartbeatHello {
  enum class Turn {
    kCall,
    kAnswer,
    kLeft,     ///< of the listener, last of all: its process ends in good order
    kGivenUp,  ///< of the listener, last of all: its process takes the caller for dead
    kBlocked,  ///< the same, because data does not get through
  };
  enum class Topic : uint32_t {
    kShared,   ///< heartbeats over the network that all hosts share
    kPrivate,  ///< heartbeats over a private link
    kBroken,   ///< a BreakNotice: the connection broke
    kDeaf,     ///< a BreakNotice: the sender receives nothing from its host any more
    kBlocked,  ///< a BreakNotice: data does not get through
    kAdmit,    ///< the sender asks to be let connect: see admission_request.h
  };

  uint64_t sender = 0;       ///< process
  uint64_t receiver = 0;     ///< process
  uint32_t incarnation = 0;  ///< of the connection between the two
  Topic topic = Topic::kShared;
  uint64_t number = 0;  ///< of the call: higher than those of all calls before it

  bool is_break_notice() const { return topic >= Topic::kBroken && topic <= Topic::kBlocked; }

  static constexpr size_t kBytes = 56;
  using Bytes = std::array<std::byte, kBytes>;

  /// For a call that begins now. The clock counts the calls of a process to another: it is at least
  /// a look later than at the call before.
  static uint64_t next_number();
  /// `key`: of messages to the listener.
  Bytes encode(Turn turn, const MessageKey& key) const;
  /// Nothing if the bytes are not such a hello of this version.
  static std::optional<HeartbeatHello> decode(std::span<const std::byte, kBytes> bytes, Turn turn,
                                              const MessageKey& key);
};

}  // namespace q7x2
