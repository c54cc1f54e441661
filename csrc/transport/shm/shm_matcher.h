// ShmMatcher: the messages of one group between ranks of this host, through shared memory.
//
// ShmChannel has the memory. The matcher matches what arrives there with the receives of
// collectives, keeps what does not fit into a full mailbox, and frees staging memory when no rank
// reads it any more. Messages of the user go through its Outbox and Inbox.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "transport/shm/doorbell.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/task.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class ShmMatcher {
 public:
  /// A message from `rank` arrived that no receive was posted for. Returns false if no receive will
  /// be posted; the message is then dropped.
  using OnUnexpected = std::function<bool(Locked&, uint64_t tag, int rank)>;

  /// `channel` has joined; its members are `residents`, in the same order. Members for which it is
  /// open use it.
  ShmMatcher(Reactor& reactor, ControlPlane& controls, std::unique_ptr<ShmChannel> channel,
             const std::vector<Resident>& residents, int world_size, OnUnexpected on_unexpected);
  ShmMatcher(const ShmMatcher&) = delete;
  ShmMatcher& operator=(const ShmMatcher&) = delete;

  ShmChannel& channel() { return *channel_; }
  /// Whether messages to and from `rank` go through this matcher. Both ranks give the same answer.
  bool serves(int rank) const { return member_at_[static_cast<size_t>(rank)] >= 0; }

  /// See GroupMessages::send_shared.
  bool send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
            const void* data, size_t length, int ticket);
  /// See GroupMessages::receive_shared.
  std::optional<ShmChannel::Message> receive(Locked& locked, Task& task, uint32_t token, int source,
                                             uint64_t tag);
  /// This rank has finished with a message's staged bytes.
  void release_message(Locked& locked, int source, const ShmChannel::Message& message);
  /// Frees the staging memory and the tickets as soon as no rank reads them any more.
  void retire_staging(Locked& locked, ShmChannel::Staging staging, std::vector<int> tickets);
  /// Frees the staging memory that has been returned since the last call.
  void free_returned(Locked&);

  /// See GroupMessages::send_message.
  void send_message(Locked& locked, Task& task, uint32_t token, int destination, uint32_t tag,
                    const void* data, size_t length);
  /// See Inbox::receive. `source` -1: any rank.
  bool receive_message(Locked& locked, PendingRequest& pending, int source, uint32_t tag,
                       void* data, size_t length);

  /// Takes what has arrived, and sends as much as there is room for. Returns true if anything
  /// happened.
  bool progress(Locked& locked);
  /// Says whether a thread polls by calling `progress` from now on; if not, other ranks must ring.
  /// `stop_polling` returns false if something has arrived, so that polling cannot stop yet.
  void start_polling(Locked&);
  bool stop_polling(Locked&);
  /// A ring has arrived: from now on others ring again after the next message. The caller must call
  /// `progress` afterwards.
  void hear_ring(Locked&);
  /// A task is over: removes its receives and sends, because their requests outlive the task. If
  /// `tells`, other ranks are told which of its messages will not arrive.
  void forget(Locked& locked, const Task& task, bool tells);
  /// UCX has completed a receive that also waits in the inbox.
  void forget_expected(Locked& locked, PendingRequest& pending) { inbox_.forget(locked, pending); }
  /// `rank` has left.
  void drop(Locked& locked, int rank);
  /// The collective whose messages have this sequence in their tags has failed: drops what has
  /// arrived for it from `rank`; -1: from all ranks.
  void drop_collective(Locked& locked, uint64_t sequence, int rank);
  /// Whether a task waits for a message, or for room to send one.
  bool expects_mail(Locked&) const;
  /// Calls `visit(tag, rank)` for each message that no receive was posted for, until it returns
  /// true.
  template <typename Visit>
  void find_unexpected(Locked&, const Visit& visit) const {
    for (const Member& member : members_) {
      for (const ShmChannel::Message& message : member.unexpected) {
        if (visit(message.tag, member.rank)) return;
      }
    }
  }

 private:
  struct Expected {
    uint64_t tag;
    PendingRequest* receive;  // a task's receive that waits for it
  };
  struct Outgoing {
    ShmChannel::Message message;
    PendingRequest* send;
  };
  struct Member {
    int rank;
    std::vector<Expected> expected;
    std::vector<ShmChannel::Message> unexpected;
    std::deque<Outgoing> outgoing;  // what does not fit into the mailbox
  };
  struct Retired {
    ShmChannel::Staging staging;
    std::vector<int> tickets;
  };

  Member& member_of(int rank) {
    return members_[static_cast<size_t>(member_at_[static_cast<size_t>(rank)])];
  }
  void take_from(Locked& locked, int number);
  bool send_to(Locked& locked, int number);
  void deliver(Locked& locked, int number, const ShmChannel::Message& message);
  void dispatch(Locked& locked, Member& member, const ShmChannel::Message& message);

  Reactor& reactor_;
  const std::unique_ptr<ShmChannel> channel_;
  const OnUnexpected on_unexpected_;
  Doorbell doorbell_;
  Outbox outbox_;
  Inbox inbox_;
  bool has_messages_ = false;   // whether it ever had messages of the user
  std::vector<int> member_at_;  // by rank; -1 if it shares no memory, and for this rank
  std::vector<Member> members_;
  std::vector<Retired> retired_;
};

}  // namespace q7x2
