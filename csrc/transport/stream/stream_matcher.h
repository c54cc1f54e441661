// StreamMatcher: which receive gets which message of the paths.
//
// Messages of a path come to it in the order of their numbers, whatever order their bytes arrive
// in. A receive gets the oldest message that matches its tag and mask, a message the oldest
// receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "transport/stream/incoming_message.h"

namespace q7x2 {

enum class StreamStatus : uint8_t {
  kOk,
  kTruncated,  ///< the message is longer than the receive's memory, and is dropped
  kCancelled,
  kPathClosed,  ///< the path was closed or failed before the request was complete
};

/// A send or receive is complete. `length` and `tag`: of the message. It must not call the lane.
using OnStreamComplete =
    std::function<void(void* request, StreamStatus status, size_t length, uint64_t tag)>;

class StreamMatcher {
 public:
  using Message = std::shared_ptr<IncomingMessage>;

  explicit StreamMatcher(OnStreamComplete on_complete) : on_complete_(std::move(on_complete)) {}
  StreamMatcher(const StreamMatcher&) = delete;
  StreamMatcher& operator=(const StreamMatcher&) = delete;

  /// See StreamLane.
  void on_unexpected(std::function<bool(uint64_t tag)> is_wanted) {
    is_wanted_ = std::move(is_wanted);
  }
  /// `may_have`: asked before a receive gets a message. If it says no, because the receive has got
  /// another one elsewhere, the receive completes as cancelled. It must not call the lane.
  void on_match(std::function<bool(void* request)> may_have) { may_have_ = std::move(may_have); }
  /// `request` is not null, and of no other receive in progress. Returns true if a message has it
  /// already.
  bool receive(void* request, uint64_t tag, uint64_t mask, std::byte* data, size_t room);
  /// The receive completes as cancelled, at once; its memory is not written to any more. Nothing if
  /// it is complete already.
  void cancel(void* request);
  /// The same, unless a message has it: then nothing happens, and the result is false.
  bool take_back(void* request);

  /// The next message of its path.
  void arrived(const Message& message);
  /// All of a message is in its place.
  void finish(IncomingMessage& message);
  /// Its path is closed: a receive that has the message fails, and nobody else gets it.
  void fail(IncomingMessage& message);

  /// The tag of the oldest message that matches and that no receive has.
  std::optional<uint64_t> find_unexpected(uint64_t tag, uint64_t mask) const;
  void drop_unexpected(uint64_t tag, uint64_t mask);
  size_t num_unexpected() const { return unexpected_.size(); }
  size_t num_expected() const { return expected_.size(); }

 private:
  struct Receive {
    void* request;
    uint64_t tag;
    uint64_t mask;
    std::byte* data;
    size_t room;
  };

  /// Returns false if the receive cannot have a message any more.
  bool match(const Receive& receive, const Message& message);

  const OnStreamComplete on_complete_;
  std::function<bool(uint64_t)> is_wanted_;
  std::function<bool(void*)> may_have_;
  std::list<Receive> expected_;    // in the order of the calls
  std::list<Message> unexpected_;  // in the order of their arrival
  std::unordered_map<void*, Message> matched_;
};

}  // namespace q7x2
