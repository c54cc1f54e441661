// Outbox: the user's messages of one group to ranks of this host, through a ShmChannel.
//
//   length            travels
//   up to 40 bytes    in a descriptor
//   up to a place     whole: it is copied to a place of the receiver, and the receiver copies it
//                     from there, if need be to memory of its own until somebody asks for it
//   more              in pieces of a place, once the receiver has accepted the offer of it. It does
//                     so when it has a receive for it
//
// So what has arrived and nobody asks for takes no place, a message that nobody asks for holds up
// no other one, and a receiver that has stopped holds up only what is sent to it.
//
// Messages to a member leave in the order of their sends: whole, or as an offer. Pieces of several
// messages take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "transport/shm/doorbell.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/task.h"
#include "transport/ucx/reactor.h"

namespace q7x2 {

class Outbox {
 public:
  Outbox(Reactor& reactor, ShmChannel& channel, Doorbell& doorbell)
      : reactor_(reactor),
        channel_(channel),
        doorbell_(doorbell),
        members_(static_cast<size_t>(channel.members())) {}

  /// Task::completed follows when the memory may be used again.
  void send(Locked& locked, Task& task, uint32_t token, int member, uint32_t tag, const void* data,
            size_t length);
  /// The inbox of this rank answers the offer called `number`.
  void answer(Locked& locked, int member, DescriptorKind kind, uint32_t number);
  /// A descriptor of `member` to this outbox.
  void deliver(Locked& locked, int member, const HostMessage& descriptor);
  /// Sends what there is room for. True: something happened.
  bool progress(Locked& locked, int member);
  /// A task is over. With `tells` the receivers of its messages must know.
  void forget(Locked& locked, const Task& task, bool tells);
  /// `member` has left: it takes nothing more.
  void drop(Locked& locked, int member);
  /// Whether there is something that waits for a receiver.
  bool is_waiting() const;

 private:
  struct Message {
    PendingRequest* pending;  // null: it is given up, and its receiver is to be told
    uint32_t tag;
    const std::byte* data;
    size_t length;
  };
  /// A message in pieces.
  struct Transfer {
    uint32_t number;
    Message message;
    size_t next = 0;  // piece
  };
  struct Member {
    std::deque<HostMessage> answers;
    std::deque<Message> messages;
    std::list<Transfer> offered;
    std::list<Transfer> accepted;
    int next_place = 0;
    bool has_left = false;
  };

  Member& at(int member) { return members_[static_cast<size_t>(member)]; }
  bool post_next(Locked& locked, int member);
  bool post_message(Locked& locked, int member);
  bool post_piece(Locked& locked, int member);
  bool copy_to_place(int member, HostMessage& descriptor, const std::byte* data, size_t length);
  void complete(Locked& locked, const Message& message);

  Reactor& reactor_;
  ShmChannel& channel_;
  Doorbell& doorbell_;
  std::vector<Member> members_;
  uint32_t next_number_ = 0;
};

}  // namespace q7x2
