// Inbox: the user's messages of one group from ranks of this host, which come through a ShmChannel,
// and the receives that wait for them. See Outbox.
//
// A receive from any rank waits at UCX or at the StreamLane too, because the message may come from
// another host (PendingRequest::rival).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "transport/shm/doorbell.h"
#include "transport/shm/outbox.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/task.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Inbox {
 public:
  static constexpr int kAnyMember = -1;

  Inbox(Reactor& reactor, ShmChannel& channel, Doorbell& doorbell, Outbox& outbox)
      : reactor_(reactor), channel_(channel), doorbell_(doorbell), outbox_(outbox) {}

  /// `pending` completes with the oldest message from `member` with this tag, which is copied to
  /// `length` bytes at `data`. Returns true if the message has already arrived.
  bool receive(Locked& locked, PendingRequest& pending, int member, uint32_t tag, void* data,
               size_t length);
  /// Takes a descriptor of `member` to this inbox. Throws Error(kTransport) if it is invalid.
  void deliver(Locked& locked, int member, const HostMessage& descriptor);
  /// `member` has left: messages that it has offered will not arrive.
  void drop(Locked& locked, int member);
  /// A task is over: removes its receives.
  void forget(Locked& locked, const Task& task);
  /// A rival had a message first.
  void forget(Locked& locked, PendingRequest& pending);
  bool is_waiting() const { return !expected_.empty() || !incoming_.empty(); }

 private:
  struct Expected {
    PendingRequest* pending;
    int member;
    uint32_t tag;
    std::byte* data;
    size_t room;
  };
  /// A message that no receive has matched yet.
  struct Arrived {
    int member;
    uint32_t tag;
    size_t length;
    std::unique_ptr<std::byte[]> bytes;  // null: it was only offered
    uint32_t number;                     // number of the offer
  };
  /// A message that is arriving in pieces.
  struct Incoming {
    Expected receive;
    size_t length;
    size_t received = 0;
  };
  using Key = std::pair<int, uint32_t>;  // member, number of the offer

  std::optional<Expected> claim(Locked& locked, int member, uint32_t tag);
  void take_message(Locked& locked, int member, const HostMessage& descriptor);
  void take_piece(Locked& locked, int member, const HostMessage& descriptor);
  void withdraw(Locked& locked, int member, uint32_t number);
  void accept(Locked& locked, const Expected& receive, int member, uint32_t number, size_t length);
  void complete(Locked& locked, const Expected& receive, int member, size_t length);

  Reactor& reactor_;
  ShmChannel& channel_;
  Doorbell& doorbell_;
  Outbox& outbox_;
  std::list<Expected> expected_;  // in the order in which they were posted
  std::list<Arrived> arrived_;    // in the order in which they arrived
  std::map<Key, Incoming> incoming_;
};

}  // namespace q7x2
