// EarlyMessages: messages that arrived before anybody asked for them, in memory of this process.
//
// UCX leaves such a message in the shared memory through which it came, and takes more of that
// memory for the next. Where it gets no more, UCX 1.22 loses messages without a word, and crashes
// when it is closed. So on a machine where that may happen, the reactor moves them here after each
// progress of the worker. A receive looks here first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "transport/ucx/request.h"
#include "transport/ucx/ucx.h"

namespace q7x2 {

class EarlyMessages {
 public:
  EarlyMessages() = default;
  EarlyMessages(const EarlyMessages&) = delete;
  EarlyMessages& operator=(const EarlyMessages&) = delete;

  /// Moves what `worker` has. If memory is short, the rest stays with UCX.
  void take_from(UcpWorker& worker);
  /// False: nothing here matches. Else `pending` completes with the oldest that does, at once or
  /// when the rest of it has arrived.
  bool receive(PendingRequest& pending, uint64_t tag, uint64_t mask, void* data, size_t length);
  /// Whether `pending` waits for the rest of a message of these.
  bool has(const PendingRequest& pending) const;
  /// False: `pending` does not wait for a message of these. Else it completes as cancelled.
  bool cancel(PendingRequest& pending);
  /// The tag of the oldest that matches and that nobody has asked for.
  std::optional<uint64_t> find(uint64_t tag, uint64_t mask) const;
  void drop(uint64_t tag, uint64_t mask);

 private:
  struct Message {
    EarlyMessages* owner = nullptr;
    uint64_t tag = 0;
    size_t length = 0;
    std::unique_ptr<std::byte[]> bytes;
    void* request = nullptr;  ///< UCX's handle; null once all of it is here
    ucs_status_t status = UCS_INPROGRESS;
    bool is_dropped = false;
    std::list<Message>::iterator place;

    // Who has asked for it.
    PendingRequest* pending = nullptr;
    void* data = nullptr;
    size_t room = 0;
  };
  using Place = std::list<Message>::iterator;

  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user_data);
  Place oldest(uint64_t tag, uint64_t mask);
  void hand_over(Place message);

  std::list<Message> messages_;  // in the order of their arrival
};

}  // namespace q7x2
