#include "transport/stream/stream_matcher.h"

#include <algorithm>
#include <cstring>

namespace q7x2 {

void IncomingMessage::unbounce() {
  if (!bounce) return;
  for (const ByteRange& range : received.ranges()) {
    std::memcpy(place + range.first, bounce.get() + range.first, range.size());
  }
  bounce.reset();
}

bool StreamMatcher::receive(void* request, uint64_t tag, uint64_t mask, std::byte* data,
                            size_t room) {
  const auto found = std::ranges::find_if(
      unexpected_, [&](const Message& message) { return ((message->tag ^ tag) & mask) == 0; });
  const Receive wanted{request, tag, mask, data, room};
  if (found == unexpected_.end()) {
    expected_.push_back(wanted);
    return false;
  }
  const Message message = *found;
  if (match(wanted, message)) unexpected_.erase(found);
  return true;
}

void StreamMatcher::arrived(const Message& message) {
  for (auto each = expected_.begin(); each != expected_.end();) {
    if (((message->tag ^ each->tag) & each->mask) != 0) {
      ++each;
      continue;
    }
    const Receive wanted = *each;
    each = expected_.erase(each);
    if (match(wanted, message)) return;
  }
  if (is_wanted_ && !is_wanted_(message->tag)) {
    message->owner->on_dropped(*message);
  } else {
    unexpected_.push_back(message);
  }
}

bool StreamMatcher::match(const Receive& receive, const Message& message) {
  if (may_have_ && !may_have_(receive.request)) {
    on_complete_(receive.request, StreamStatus::kCancelled, 0, message->tag);
    return false;
  }
  if (message->total > receive.room) {
    if (message->owner != nullptr) message->owner->on_dropped(*message);
    on_complete_(receive.request, StreamStatus::kTruncated, message->total, message->tag);
    return true;
  }
  message->request = receive.request;
  message->place = receive.data;
  matched_.emplace(receive.request, message);
  if (message->owner != nullptr) {
    message->owner->on_matched(*message);
  } else {
    message->unbounce();
    finish(*message);
  }
  return true;
}

void StreamMatcher::finish(IncomingMessage& message) {
  const auto found = matched_.find(message.request);
  if (found == matched_.end()) return;
  const Message kept = found->second;
  matched_.erase(found);
  on_complete_(message.request, StreamStatus::kOk, message.total, message.tag);
}

void StreamMatcher::fail(IncomingMessage& message) {
  message.owner = nullptr;
  const auto found = matched_.find(message.request);
  if (found != matched_.end()) {
    const Message kept = found->second;
    matched_.erase(found);
    on_complete_(message.request, StreamStatus::kPathClosed, 0, message.tag);
    return;
  }
  std::erase_if(unexpected_, [&](const Message& each) { return each.get() == &message; });
}

void StreamMatcher::cancel(void* request) {
  if (take_back(request)) return;
  const auto found = matched_.find(request);
  if (found == matched_.end()) return;
  const Message message = found->second;
  matched_.erase(found);
  if (message->owner != nullptr) message->owner->on_dropped(*message);
  on_complete_(request, StreamStatus::kCancelled, 0, message->tag);
}

bool StreamMatcher::take_back(void* request) {
  const auto found = std::ranges::find(expected_, request, &Receive::request);
  if (found == expected_.end()) return false;
  const uint64_t tag = found->tag;
  expected_.erase(found);
  on_complete_(request, StreamStatus::kCancelled, 0, tag);
  return true;
}

std::optional<uint64_t> StreamMatcher::find_unexpected(uint64_t tag, uint64_t mask) const {
  for (const Message& message : unexpected_) {
    if (((message->tag ^ tag) & mask) == 0) return message->tag;
  }
  return std::nullopt;
}

void StreamMatcher::drop_unexpected(uint64_t tag, uint64_t mask) {
  for (auto each = unexpected_.begin(); each != unexpected_.end();) {
    if ((((*each)->tag ^ tag) & mask) != 0) {
      ++each;
      continue;
    }
    const Message message = *each;
    each = unexpected_.erase(each);
    if (message->owner != nullptr) message->owner->on_dropped(*message);
  }
}

}  // namespace q7x2
