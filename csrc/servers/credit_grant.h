// CreditGrant: how many slots the servers of a server group have for the next attempt
// (servers/server_group.h).
//
//   rank 0   order ---> server 0: 16 slots ---> all other members
//            order ---> server 1:  5 slots ---> all other members
//
// Each member takes the least number as the window of the attempt. If it is 0, the attempt ends at
// once on all members, without a message, and the ranks make the call by themselves. So it does
// where rank 0 has ordered that the servers leave the call to the ranks.
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
  /// More slots than any window has.
  static constexpr uint8_t kMostSlots = 255;
  /// Instead of a number: rank 0 does not want the attempt.
  static constexpr uint8_t kUnwanted = 254;

  /// Members from `ranks` on are servers. `own`: what this one has; ranks have kMostSlots.
  CreditGrant(std::shared_ptr<Group> servers, int ranks, uint8_t own,
              std::chrono::milliseconds timeout);

  /// Only after `done`, and without an error.
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
  size_t pending_ = 0;  // messages
};

}  // namespace q7x2
