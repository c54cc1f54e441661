#include "executor/collective/message.h"

#include "ledger/flight_record.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

MessageTask::MessageTask(std::shared_ptr<Group> group, Direction direction, int peer,
                         uint32_t user_tag, void* data, size_t bytes,
                         std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout)
    : Task(std::move(group), timeout),
      direction_(direction),
      peer_(peer),
      user_tag_(user_tag),
      data_(data),
      bytes_(bytes),
      keep_alive_(std::move(keep_alive)) {}

std::string MessageTask::name() const {
  std::string text = direction_ == Direction::kSend ? "send" : "recv";
  text += " (" + std::to_string(bytes_) + " bytes, tag " + std::to_string(user_tag_);
  text += direction_ == Direction::kSend ? ", to " : ", from ";
  text += peer_ == kAnySource ? "any rank" : "rank " + std::to_string(peer_);
  return text + ") on rank " + std::to_string(group().rank()) + " of " +
         std::to_string(group().world_size()) + " in group '" + group().membership().name() + "'";
}

void MessageTask::describe(FlightRecord& record) const {
  const bool sends = direction_ == Direction::kSend;
  record.kind = sends ? FlightRecord::Kind::kSend : FlightRecord::Kind::kReceive;
  record.peer = peer_;
  record.tag = user_tag_;
  record.input_bytes = record.output_bytes = bytes_;
}

void MessageTask::start(Locked& locked) {
  if (awaits_inputs(locked)) return;
  if (direction_ == Direction::kSend) {
    group().messages().send_message(locked, *this, 0, peer_, user_tag_, data_, bytes_);
  } else {
    group().messages().receive_message(locked, *this, 0, peer_, user_tag_, data_, bytes_);
  }
}

void MessageTask::completed(Locked& locked, uint32_t, size_t length, uint64_t tag) {
  if (direction_ == Direction::kReceive) {
    source_ = tag::source_of(tag, group().world_size());
    if (source_ >= group().world_size()) {
      fail(locked, Error(ErrorCode::kMismatch,
                         name() + ": a message came from rank " + std::to_string(source_)));
      return;
    }
    if (length != bytes_) {
      fail(locked, Error(ErrorCode::kMismatch,
                         name() + ": rank " + std::to_string(source_) + " sent " +
                             std::to_string(length) + " bytes, expected " + std::to_string(bytes_),
                         source_));
      return;
    }
  }
  finish(locked);
}

}  // namespace q7x2
