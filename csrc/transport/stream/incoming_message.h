// IncomingMessage: a message on its way here, between its path and the matcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/stream/range_set.h"

namespace q7x2 {

struct IncomingMessage;

/// The path that a message comes from.
class IncomingOwner {
 public:
  /// A receive has the message now: `place` and `request` are set.
  virtual void on_matched(IncomingMessage& message) = 0;
  /// Nobody wants the message any more.
  virtual void on_dropped(IncomingMessage& message) = 0;

 protected:
  ~IncomingOwner() = default;
};

/// A message that no receive waits for.
struct StreamNotice {
  enum class Turn : uint8_t {
    kInOrder,
    kEarly,  ///< messages that were sent before it are on their way; it comes again after them
    kAgain,
  };
  uint64_t process = 0;  ///< the sender
  uint64_t topic = 0;
  std::string text;
  Turn turn = Turn::kInOrder;
};

struct IncomingMessage {
  IncomingOwner* owner = nullptr;  ///< null: the path is closed, and all of the message is here
  uint64_t number = 0;             ///< counts the messages of the path
  uint64_t tag = 0;
  uint64_t total = 0;  ///< bytes
  uint64_t eager = 0;  ///< leading bytes that come although nobody has asked
  bool has_envelope = false;
  bool is_notice = false;
  bool is_over = false;  ///< whole and handed over, or dropped: `place` is not ours any more
  RangeSet received;
  std::shared_ptr<std::byte[]> bounce;  ///< the eager bytes, until there is a place

  // Once a receive has it.
  void* request = nullptr;
  std::byte* place = nullptr;
  std::string text;  ///< notices: its place

  bool is_matched() const { return request != nullptr; }
  bool is_whole() const { return has_envelope && received.covered() == total; }
  /// Copies what has arrived from the bounce memory to its place.
  void unbounce();
};

}  // namespace q7x2
