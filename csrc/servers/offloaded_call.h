// OffloadedCall: what a call of the ranks knows of its attempt by servers (servers/server_group.h):
// the vote on the attempt, and what follows from it.
//
// The vote is a prerequisite of the call. It begins when the attempt is done on this rank. So when
// the vote is complete, the attempt is done on all ranks, and nothing touches their memory any
// more. Once the server group is dropped, votes say nothing, and each call only waits for the end
// of its attempt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "plan/choose/plan_cache.h"
#include "servers/offload_attempt.h"
#include "transport/task/job.h"
#include "transport/task/task.h"

namespace q7x2 {

class ServerGroup;

class OffloadedCall {
 public:
  /// How what the attempt may have overwritten is put back; without `run`: it overwrites nothing.
  struct Undo {
    std::function<void()> run;
    size_t bytes = 0;
  };

  OffloadedCall(std::shared_ptr<ServerGroup> servers, std::shared_ptr<Task> task,
                std::shared_ptr<OffloadAttempt> attempt, Undo undo);

  /// The attempt, to be submitted right before the call.
  const std::shared_ptr<Task>& task() const { return task_; }

  // For the call.

  /// The all-reduce of what the ranks say of the attempt, which precedes `call`. `agreed`: what the
  /// ranks must agree on. `plans`: of the ranks' own group.
  std::shared_ptr<Task> vote(Locked& locked, const Task& call, uint32_t agreed,
                             const std::shared_ptr<PlanCache>& plans);
  /// False until the vote is complete.
  bool is_decided(Locked& locked);
  /// Whether the attempt has brought the result. Only once it is decided.
  bool was_served() const { return was_served_; }
  /// To be run before a call that was not served reads its memory; null: nothing is.
  std::unique_ptr<Job> restoring() const;
  size_t restored_bytes() const { return undo_.bytes; }

 private:
  class Restoring;

  const std::shared_ptr<ServerGroup> servers_;
  const std::shared_ptr<Task> task_;
  const std::shared_ptr<OffloadAttempt> attempt_;
  const Undo undo_;
  std::shared_ptr<Task> vote_;  // until it is counted
  std::shared_ptr<uint8_t> word_;
  bool was_served_ = false;
};

}  // namespace q7x2
