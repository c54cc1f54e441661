// GroupCourier: sends texts between the ranks of a group, before it has collectives.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "executor/probe/relay.h"
#include "transport/group/group.h"

namespace q7x2 {

/// Texts between ranks of one host go through shared memory, so that they need no connection.
/// Throws the group's error where a rank dies, Error(kTimeout) for a text that has not passed at
/// the deadline, and Error(kMismatch) for one of more than `max_bytes`.
class GroupCourier final : public Courier {
 public:
  GroupCourier(std::shared_ptr<Group> group, size_t max_bytes, TimePoint deadline)
      : group_(std::move(group)), max_bytes_(max_bytes), deadline_(deadline) {}

  void send(int rank, const std::string& text) override;
  std::string receive(int rank) override;

 private:
  std::chrono::milliseconds left() const;

  const std::shared_ptr<Group> group_;
  const size_t max_bytes_;
  const TimePoint deadline_;
};

}  // namespace q7x2
