// CreditGrant: tells all members of a server group how many slots the servers have for the next
// attempt (servers/server_group.h). A slot is memory for one slice (servers/slot_pool.h).
//
//   rank 0   order ---> server 0: 16 slots ---> all other members
//            order ---> server 1:  5 slots ---> all other members
//
// The smallest number is the window of the attempt on all members. If it is 0, the attempt ends at
// once on all members without a message, and the ranks make the call by themselves. The same
// happens if rank 0 has ordered that the servers leave the call to the ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/group/group.h"
#include "transport/task/task.h"

namespace q7x2 {

class CreditGrant final : public Task {
 public:
  /// More slots than any window has. Ranks count as having this many.
  static constexpr uint8_t kMostSlots = 255;
  /// Sent instead of a number of slots: rank 0 does not want the attempt.
  static constexpr uint8_t kUnwanted = 254;

  /// Members from `ranks` on are servers. `own`: number of slots of this member; kMostSlots for a
  /// rank.
  CreditGrant(std::shared_ptr<Group> servers, int ranks, uint8_t own,
              std::chrono::milliseconds timeout);

  /// The number of slots for the attempt; 0 if it is not wanted. Only after `done`, without an
  /// error.
  size_t slots() const;
  bool is_wanted() const;

  std::string name() const override;
  bool takes_turn() const override { return true; }
  bool is_attempt() const override { return true; }
  int first_server() const override { return ranks_; }
  void start(Locked& locked) override;
  void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) override;
  void stranded(Locked& locked, const Error& error) override { end_group(locked, error); }
  void timed_out(Locked& locked) override { end_group(locked, timeout_error(locked)); }

 private:
  void end_group(Locked& locked, const Error& error);

  const int ranks_;
  std::vector<uint8_t> words_;  // by server
  uint8_t own_;
  size_t pending_ = 0;  // number of messages that are not complete
};

}  // namespace q7x2
