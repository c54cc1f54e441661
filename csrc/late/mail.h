// Mail: messages from any rank to any other, received when they arrive.
//
// A message is a header of a few integers, and optionally a payload of bytes after it. One receive
// per peer always waits for its next header:
//
//   send header, send payload  -->  header's receive --> payload's receive --> queue
//
// A message arrives when it is complete, so it may overtake one with a longer payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "late/message_queue.h"
#include "late/messenger.h"
#include "transport/group/group.h"

namespace q7x2 {

class Mail final : public Messenger, public std::enable_shared_from_this<Mail> {
 public:
  /// All ranks of `group` make it, and nothing else sends messages in the group. `width`: number of
  /// integers in a header. `queue`: where messages arrive; several Mails of one thread may share
  /// it. `most_sends`: maximum number of unfinished sends to a rank that does not take them;
  /// further messages to it are dropped.
  static std::shared_ptr<Mail> make(std::shared_ptr<Group> group, size_t width,
                                    std::shared_ptr<MessageQueue> queue, size_t most_sends);
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  const std::vector<int>& peers() const override { return peers_; }
  void send(int peer, std::span<const int64_t> header, const Bytes& payload) override;
  bool is_loading(int peer) const override;
  /// The next message of the queue. Nothing if `deadline` passed, or if a part of a message has
  /// arrived or been taken. Throws the Error of a failed group.
  std::optional<PeerMessage> receive(TimePoint deadline) { return queue_->receive(deadline); }
  std::optional<PeerMessage> receive_within(double seconds) override;
  void finish_sends() override;

 private:
  class MailTask;

  Mail(std::shared_ptr<Group> group, size_t width, std::shared_ptr<MessageQueue> queue,
       size_t most_sends);
  std::shared_ptr<MailTask> post_send(int peer, uint32_t tag, const Bytes& data,
                                      MessageQueue::Arrival arrival);
  void post_receive(int peer, uint32_t tag, const Bytes& data, MessageQueue::Arrival arrival);
  void await_header(int peer);
  std::optional<PeerMessage> header_arrived(int peer, const Bytes& data);

  const std::shared_ptr<Group> group_;
  const size_t width_;
  const std::shared_ptr<MessageQueue> queue_;
  const size_t most_sends_;
  std::vector<int> peers_;
  std::map<int, std::vector<std::shared_ptr<MailTask>>> sends_;  // by peer: unfinished sends
  std::map<int, std::shared_ptr<MailTask>> payloads_;            // by peer: the last payload
};

}  // namespace q7x2
