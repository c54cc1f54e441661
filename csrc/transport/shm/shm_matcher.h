// ShmMatcher: the messages of one group between ranks of this host, through shared memory.
//
// ShmChannel has the memory. The matcher matches what arrives there with the receives of
// collectives, keeps what does not fit into a full mailbox, and frees staging when nobody reads it
// any more. Messages of the user go through its Outbox and Inbox.
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
  /// A message from `rank` arrived that no receive was posted for. False: none will be, and it is
  /// dropped.
  using OnUnexpected = std::function<bool(Locked&, uint64_t tag, int rank)>;

  /// `channel` has joined; its members are `residents`, in their order. Those that it is open to
  /// talk through it.
  ShmMatcher(Reactor& reactor, ControlPlane& controls, std::unique_ptr<ShmChannel> channel,
             const std::vector<Resident>& residents, int world_size, OnUnexpected on_unexpected);
  ShmMatcher(const ShmMatcher&) = delete;
  ShmMatcher& operator=(const ShmMatcher&) = delete;

  ShmChannel& channel() { return *channel_; }
  /// Whether messages to and from `rank` go through here. Both ranks say the same.
  bool serves(int rank) const { return member_at_[static_cast<size_t>(rank)] >= 0; }

  /// See GroupMessages::send_shared.
  bool send(Locked& locked, Task& task, uint32_t token, int destination, uint64_t tag,
            const void* data, size_t length, int ticket);
  /// See GroupMessages::receive_shared.
  std::optional<ShmChannel::Message> receive(Locked& locked, Task& task, uint32_t token, int source,
                                             uint64_t tag);
  /// This rank is done with a message's staged bytes.
  void release_message(Locked& locked, int source, const ShmChannel::Message& message);
  /// Frees the staging and the tickets as soon as nobody reads them any more.
  void retire_staging(Locked& locked, ShmChannel::Staging staging, std::vector<int> tickets);
  /// Frees what has been returned since.
  void free_returned(Locked&);

  /// See GroupMessages::send_message.
  void send_message(Locked& locked, Task& task, uint32_t token, int destination, uint32_t tag,
                    const void* data, size_t length);
  /// See Inbox::receive. `source` -1: from any rank.
  bool receive_message(Locked& locked, PendingRequest& pending, int source, uint32_t tag,
                       void* data, size_t length);

  /// Takes what has arrived, and sends what there is room for. True: something happened.
  bool progress(Locked& locked);
  /// Somebody calls `progress` again and again from now on, or nobody does any more until a ring
  /// comes. Where that is not possible, because something has arrived, the latter is false.
  void start_polling(Locked&);
  bool stop_polling(Locked&);
  /// A ring has come: from here on the next one comes after the next message. To be followed by
  /// `progress`.
  void hear_ring(Locked&);
  /// A task is over: what it waits for is forgotten. Its requests would outlive it. With `tells`
  /// other ranks must know which of its messages they will not get.
  void forget(Locked& locked, const Task& task, bool tells);
  /// UCX has completed a receive for which the inbox waits, too.
  void forget_expected(Locked& locked, PendingRequest& pending) { inbox_.forget(locked, pending); }
  /// `rank` has left.
  void drop(Locked& locked, int rank);
  /// The collective whose messages have this sequence in their tags has failed: what has arrived
  /// for it from `rank` is dropped, -1: from any.
  void drop_collective(Locked& locked, uint64_t sequence, int rank);
  /// Whether a task waits for a message, or for room for one.
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
    PendingRequest* receive;  // of a task that waits for it
  };
  struct Outgoing {
    ShmChannel::Message message;
    PendingRequest* send;
  };
  struct Member {
    int rank;
    std::vector<Expected> expected;
    std::vector<ShmChannel::Message> unexpected;
    std::deque<Outgoing> outgoing;  // where the mailbox is full
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
  bool has_messages_ = false;   // of the user, ever
  std::vector<int> member_at_;  // by rank; -1 where it does not share memory, and for this rank
  std::vector<Member> members_;
  std::vector<Retired> retired_;
};

}  // namespace q7x2
