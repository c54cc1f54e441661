// Outbox: the user's messages of one group to ranks of this host, through a ShmChannel.
//
//   length            travels
//   up to 40 bytes    in a descriptor
//   up to one place   whole: the sender copies it to a place of the receiver. The receiver copies
//                     it from there to the receive, or to memory of its own until a receive
//                     matches it
//   more              in pieces, each of one place, after the receiver has accepted an offer. It
//                     accepts when it has a matching receive
//
// So a message that has arrived but matches no receive occupies no place, and does not hold up
// other messages. A receiver that has stopped holds up only the messages to itself.
//
// Messages to one member leave in the order of their sends, whole or as an offer. Pieces of several
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

  /// Task::completed is called when the memory may be used again.
  void send(Locked& locked, Task& task, uint32_t token, int member, uint32_t tag, const void* data,
            size_t length);
  /// This rank's inbox answers the offer with this `number`.
  void answer(Locked& locked, int member, DescriptorKind kind, uint32_t number);
  /// Takes a descriptor of `member` to this outbox.
  void deliver(Locked& locked, int member, const HostMessage& descriptor);
  /// Sends as much as there is room for. Returns true if anything was sent.
  bool progress(Locked& locked, int member);
  /// A task is over. If `tells`, the receivers of its messages are told that they will not arrive.
  void forget(Locked& locked, const Task& task, bool tells);
  /// `member` has left: it receives nothing more.
  void drop(Locked& locked, int member);
  /// Whether any message waits for its receiver.
  bool is_waiting() const;

 private:
  struct Message {
    PendingRequest* pending;  // null: cancelled, and the receiver must be told
    uint32_t tag;
    const std::byte* data;
    size_t length;
  };
  /// A message that is sent in pieces.
  struct Transfer {
    uint32_t number;
    Message message;
    size_t next = 0;  // the next piece
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
