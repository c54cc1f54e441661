// Messenger: what a Quorum sends through and receives from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "late/message_queue.h"

namespace q7x2 {

/// One rank's messages to and from its peers. One thread at a time uses it.
class Messenger {
 public:
  virtual ~Messenger() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// All ranks but this one, ascending.
  virtual const std::vector<int>& peers() const = 0;
  /// Begins to send; a message to a rank that takes none for long is dropped. The payload must not
  /// change any more.
  virtual void send(int peer, std::span<const int64_t> header, const Bytes& payload) = 0;
  /// Whether a payload to `peer` is not complete yet.
  virtual bool is_loading(int peer) const = 0;
  /// The next message. Nothing: none has come within `seconds`, or only a part of one. Throws the
  /// Error of a failed group.
  virtual std::optional<PeerMessage> receive_within(double seconds) = 0;
  /// Waits until all that was sent has been taken. Throws the Error of a failed group.
  virtual void finish_sends() = 0;
};

}  // namespace q7x2
