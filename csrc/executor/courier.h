// GroupCourier: sends texts between the ranks of a group, before it has collectives.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "executor/relay.h"
#include "transport/group.h"

namespace q7x2 {

/// Texts between ranks of one host go through shared memory, so that they need no connection.
/// Throws the group's error where a rank dies, and Error(kMismatch) for a text of more than
/// `max_bytes`.
class GroupCourier final : public Courier {
 public:
  GroupCourier(std::shared_ptr<Group> group, size_t max_bytes, std::chrono::milliseconds timeout)
      : group_(std::move(group)), max_bytes_(max_bytes), timeout_(timeout) {}

  void send(int rank, const std::string& text) override;
  std::string receive(int rank) override;

 private:
  const std::shared_ptr<Group> group_;
  const size_t max_bytes_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace q7x2
