// GroupMessages: the messages of a group's tasks, over the network and through shared memory.
//
// Tasks call these functions from their hooks. Completion is reported by Task::completed or
// Task::arrived, never from inside a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/peer/peer.h"
#include "transport/shm/shm_matcher.h"
#include "transport/task/task.h"

namespace q7x2 {

class Departure;
class GroupLinks;
class Membership;
class TurnQueue;

class GroupMessages {
 public:
  /// `slot`: the group's slot in this process. The other arguments must outlive the messages.
  GroupMessages(int slot, const Membership& members, const Departure& departure, GroupLinks& links,
                const TurnQueue& turns);
  GroupMessages(const GroupMessages&) = delete;
  GroupMessages& operator=(const GroupMessages&) = delete;

  // Over the network.

  // `wire`: kShared is what carries all messages to the other rank but those of collectives over a
  // private link: UCX, or many connections.

  /// `tag`: see transport/ucx/tag.h; its slot is set here. `kind`: of the memory at `data`.
  void send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
            const void* data, size_t length, Wire wire = Wire::kShared,
            MemoryKind kind = MemoryKind::kHost);
  /// `tag` must contain this rank's slot.
  void receive(Locked& locked, Task& task, uint32_t token, int source, uint64_t tag, uint64_t mask,
               void* data, size_t length, Wire wire = Wire::kShared,
               MemoryKind kind = MemoryKind::kHost);

  // Messages of the user, through shared memory if the two ranks share any.

  void send_message(Locked& locked, Task& task, uint32_t token, int destination, uint32_t user_tag,
                    const void* data, size_t length);
  /// `source` -1: any rank.
  void receive_message(Locked& locked, Task& task, uint32_t token, int source, uint32_t user_tag,
                       void* data, size_t length);

  // Messages of collectives between ranks that share memory.

  /// Whether messages to and from `rank` go through shared memory. Both ranks give the same answer.
  bool shares_memory(int rank) const { return matcher_ && matcher_->serves(rank); }
  /// Why `rank`, which is on this host, shares no memory with this rank; empty if it does.
  const std::string& memory_refusal(int rank) const {
    return memory_refusals_[static_cast<size_t>(rank)];
  }
  /// Null if no rank shares memory with this one.
  ShmChannel* channel() const { return matcher_ ? &matcher_->channel() : nullptr; }
  /// Sends bytes that a descriptor carries (`staged` null, at most ShmChannel::kInlineBytes), or
  /// that are staged in the channel's arena under a ticket. Returns true if it is complete;
  /// otherwise Task::completed is called later.
  bool send_shared(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
                   const void* data, size_t length, int ticket);
  /// The message, if it has arrived; the caller then owns it. Otherwise Task::arrived is called
  /// later.
  std::optional<ShmChannel::Message> receive_shared(Locked& locked, Task& task, uint32_t token,
                                                    int source, uint64_t tag);
  /// This rank has finished with a message's staged bytes.
  void release_message(Locked& locked, int source, const ShmChannel::Message& message) {
    matcher_->release_message(locked, source, message);
  }
  /// Frees the staging memory and the tickets as soon as no rank reads them any more.
  void retire_staging(Locked& locked, ShmChannel::Staging staging, std::vector<int> tickets) {
    matcher_->retire_staging(locked, staging, std::move(tickets));
  }
  /// Calls Task::stalled once, when something may have changed.
  void stall(Locked&, Task& task) { stalled_.push_back(&task); }

  // For the code that makes the group.

  /// From now on ranks of this host use `channel`, if it is open for both. `on_unexpected`: see
  /// ShmMatcher.
  void share_memory(Locked& locked, std::unique_ptr<ShmChannel> channel,
                    ShmMatcher::OnUnexpected on_unexpected);
  /// To be called before the first collective: messages to and from `rank` of this host do not go
  /// through shared memory, for the reason `why`.
  void refuse_memory(int rank, std::string why) {
    memory_refusals_[static_cast<size_t>(rank)] = std::move(why);
  }

  // For the group.

  /// Takes what has arrived in shared memory, and continues stalled tasks. Returns true if anything
  /// happened.
  bool progress(Locked& locked);
  /// Frees the staging memory that has been returned.
  void free_returned(Locked& locked) {
    if (matcher_) matcher_->free_returned(locked);
  }
  /// Has the shared memory polled while something may arrive through it.
  void update_sharing(Locked& locked);
  /// Calls `visit(tag, sender)` for messages of collectives that no receive was posted for, until
  /// it returns true. Visits at most one message that came over the network.
  void find_unexpected(Locked& locked, const std::function<bool(uint64_t tag, int sender)>& visit);
  /// Drops what has arrived over the network for the group.
  void drop_arrived(Locked& locked);
  /// Collective `number` has failed: drops what has arrived for it from `sender`; -1: from all
  /// ranks.
  void drop_collective(Locked& locked, uint64_t number, int sender = -1);
  /// `rank` has left: it will not take what is being sent to it.
  void drop(Locked& locked, int rank);
  /// `task` is over: removes its receives and sends in shared memory. If `tells`, other ranks are
  /// told which of its messages will not arrive.
  void forget(Locked& locked, Task& task, bool tells);
  void forget_stalled(Locked&, Task& task) { std::erase(stalled_, &task); }
  /// A receive from any rank got its message from another host.
  void forget_expected(Locked& locked, PendingRequest& pending) {
    matcher_->forget_expected(locked, pending);
  }
  /// Unmaps the memory of other ranks. Needs the lock, because the keys belong to the worker.
  void close(Locked&) { matcher_.reset(); }

  // For the code that polls the shared memory.

  /// From now on the group's memory is polled, or only when another rank rings. `stop_polling`
  /// returns false if the memory must be polled once more first.
  void start_polling(Locked& locked) { matcher_->start_polling(locked); }
  bool stop_polling(Locked& locked) { return matcher_->stop_polling(locked); }
  /// A rank of this host rings: there is a message. Returns false if the group shares no memory.
  bool hear_ring(Locked& locked);
  /// Says to ranks of this host whether they must wake this one.
  void set_asleep(Locked&, bool asleep) { matcher_->channel().set_asleep(asleep); }

 private:
  bool connect(Locked& locked, int rank, Wire wire);
  Wire carrier(Wire wire, int rank) const;
  /// Whether there is a rank whose messages come over `wire`, and not through shared memory.
  bool uses(Wire wire) const;
  void receive_any(Locked& locked, Task& task, uint32_t token, uint32_t user_tag, void* data,
                   size_t length);

  const int slot_;
  const Membership& members_;
  const Departure& departure_;
  GroupLinks& links_;
  const TurnQueue& turns_;
  std::vector<std::string> memory_refusals_;  // by rank
  std::unique_ptr<ShmMatcher> matcher_;
  std::vector<Task*> stalled_;
};

}  // namespace q7x2
