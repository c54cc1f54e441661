// Messenger: the interface through which a Quorum sends and receives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "late/message_queue.h"

namespace q7x2 {

/// One rank's messages to and from its peers. Used by one thread at a time.
class Messenger {
 public:
  virtual ~Messenger() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// All ranks except this one, in increasing order.
  virtual const std::vector<int>& peers() const = 0;
  /// Starts to send. A message to a rank that has taken none for long is dropped. The payload must
  /// not change any more.
  virtual void send(int peer, std::span<const int64_t> header, const Bytes& payload) = 0;
  /// Whether a payload to `peer` is still being sent.
  virtual bool is_loading(int peer) const = 0;
  /// The next message. Nothing if none has arrived within `seconds`, or only a part of one. Throws
  /// the Error of a failed group.
  virtual std::optional<PeerMessage> receive_within(double seconds) = 0;
  /// Waits until everything that was sent has been taken. Throws the Error of a failed group.
  virtual void finish_sends() = 0;
};

}  // namespace q7x2
