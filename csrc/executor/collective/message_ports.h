// MessagePorts: the messages of a collective, over the network and through shared memory, and the
// check that all ranks make the same call.
//
// Sends and receives complete when UCX says so. Between ranks that share memory a send puts its
// block into this rank's shared memory, once for all its receivers, and is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/collective/block_map.h"
#include "executor/collective/call_run.h"
#include "executor/collective/op_work.h"
#include "transport/group/group.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/task.h"

namespace q7x2 {

class MessagePorts {
 public:
  using Step = DagWindow::Step;

  /// All must stay.
  MessagePorts(Task& task, const CallRun& run, BlockMap& blocks, OpWork& ops)
      : task_(task), run_(run), blocks_(blocks), ops_(ops) {}

  // What follows is complete, is a job, or comes later through one of the hooks of the task.

  OpOutcome send(Locked& locked, Step step, size_t length);
  OpOutcome receive(Locked& locked, Step step, size_t length);
  /// The request with this token is complete: see Task::completed.
  OpOutcome completed(Locked& locked, uint32_t token, size_t length, uint64_t tag);
  /// A message in shared memory is there for the receive: see Task::arrived.
  OpOutcome take(Locked& locked, Step step, const ShmChannel::Message& message);
  /// A message in shared memory has been copied.
  OpOutcome taken(Locked& locked, Step step, const ShmChannel::Message& message);
  /// The block of a send is in its stage: announces it to the receiver.
  OpOutcome post(Locked& locked, Step step);
  /// Other sends that have waited for the same stage. They can be posted, too.
  std::vector<Step> take_waiting(Step step);

  static Step step_of(uint32_t token);
  /// A message of the op's peer does not fit: the ranks make different calls.
  void disagree(Locked& locked, Step step);

 private:
  /// Whether messages to and from `peer` go through shared memory. Both ranks say the same.
  bool shares_memory(int peer) const {
    return !run_.call().is_direct && task_.group().messages().shares_memory(peer);
  }
  /// Over what other messages go to and from `peer`. Both ranks say the same, because all ranks
  /// know for which Fabric the choice was made: a private link that is slow now is not in it.
  Wire wire(int peer) const;
  /// `is_shared`: it came through shared memory.
  bool is_expected(Step step, uint64_t tag, size_t length, bool is_shared) const;
  /// Of the messages of one op.
  uint64_t fingerprint(const Op& op) const;
  uint64_t sequence(Locked& locked) const { return task_.record(locked).sequence; }

  Task& task_;
  const CallRun& run_;
  BlockMap& blocks_;
  OpWork& ops_;
  std::vector<Step> awaiting_stage_;  // sends of blocks that are on their way to their stage
};

}  // namespace q7x2
