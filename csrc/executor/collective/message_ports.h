// MessagePorts: the messages of a collective, over the network and through shared memory, and the
// check that all ranks make the same call.
//
// A network send or receive completes when UCX says so. A send to a rank that shares memory copies
// its block into this rank's shared memory, once for all receivers, and is then complete.
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

  /// All must outlive it.
  MessagePorts(Task& task, const CallRun& run, BlockMap& blocks, OpWork& ops)
      : task_(task), run_(run), blocks_(blocks), ops_(ops) {}

  // These functions return the outcome so far.

  OpOutcome send(Locked& locked, Step step, size_t length);
  OpOutcome receive(Locked& locked, Step step, size_t length);
  /// The request with this token is complete: see Task::completed.
  OpOutcome completed(Locked& locked, uint32_t token, size_t length, uint64_t tag);
  /// A message in shared memory has arrived for the receive: see Task::arrived.
  OpOutcome take(Locked& locked, Step step, const ShmChannel::Message& message);
  /// A message in shared memory has been copied.
  OpOutcome taken(Locked& locked, Step step, const ShmChannel::Message& message);
  /// The block of a send is in its stage: announces it to the receiver.
  OpOutcome post(Locked& locked, Step step);
  /// Returns the other sends that wait for the same stage. They can be posted, too.
  std::vector<Step> take_waiting(Step step);

  static Step step_of(uint32_t token);
  /// A message of the op's peer does not fit: the ranks make different calls.
  void disagree(Locked& locked, Step step);

 private:
  /// Whether messages to and from `peer` go through shared memory. Equal on both ranks.
  bool shares_memory(int peer) const {
    return !run_.call().is_direct && task_.group().messages().shares_memory(peer);
  }
  /// The network for other messages to and from `peer`. Equal on both ranks, because all ranks know
  /// for which Fabric the choice was made. A private link that has become slow is not in that
  /// Fabric.
  Wire wire(int peer) const;
  /// Whether a message fits the op. `is_shared`: it came through shared memory.
  bool is_expected(Step step, uint64_t tag, size_t length, bool is_shared) const;
  /// The fingerprint of the messages of one op.
  uint64_t fingerprint(const Op& op) const;
  uint64_t sequence(Locked& locked) const { return task_.record(locked).sequence; }

  Task& task_;
  const CallRun& run_;
  BlockMap& blocks_;
  OpWork& ops_;
  std::vector<Step> awaiting_stage_;  // sends whose blocks are still being written to their stage
};

}  // namespace q7x2
