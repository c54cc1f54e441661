// Traffic: the bytes that operations exchange with other ranks.
#pragma once

#include <cstdint>

namespace q7x2 {

/// Bytes of messages without the headers of any layer. `network`: through UCX, over the shared
/// network, a private link or UCX's own shared memory. `memory`: through the group's shared memory;
/// bytes that several ranks read at one place count once per rank.
struct Traffic {
  uint64_t sent_network = 0;
  uint64_t received_network = 0;
  uint64_t sent_memory = 0;
  uint64_t received_memory = 0;

  Traffic& operator+=(const Traffic& other) {
    sent_network += other.sent_network;
    received_network += other.received_network;
    sent_memory += other.sent_memory;
    received_memory += other.received_memory;
    return *this;
  }
};

}  // namespace q7x2
