// EarlyMessages: messages that arrived before their receive was posted, in memory of this process.
//
// UCX leaves such a message in the shared memory through which it came, and takes more of that
// memory for the next one. If it gets no more, UCX 1.22 silently loses messages, and crashes when
// it is closed. So on a machine where this may happen, the reactor moves them here after each
// progress of the worker. A receive is first matched here.
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

  /// Moves the messages of `worker`. If memory is short, the rest stays with UCX.
  void take_from(UcpWorker& worker);
  /// Returns false if no message here matches. Otherwise `pending` completes with the oldest one
  /// that does, at once or when the rest of it has arrived.
  bool receive(PendingRequest& pending, uint64_t tag, uint64_t mask, void* data, size_t length);
  /// Whether `pending` waits for the rest of a message in this table.
  bool has(const PendingRequest& pending) const;
  /// Completes `pending` as cancelled. Returns false if it does not wait for a message in this
  /// table.
  bool cancel(PendingRequest& pending);
  /// The tag of the oldest message that matches and has no receive.
  std::optional<uint64_t> find(uint64_t tag, uint64_t mask) const;
  void drop(uint64_t tag, uint64_t mask);

 private:
  struct Message {
    EarlyMessages* owner = nullptr;
    uint64_t tag = 0;
    size_t length = 0;
    std::unique_ptr<std::byte[]> bytes;
    void* request = nullptr;  ///< UCX's handle; null once the whole message is here
    ucs_status_t status = UCS_INPROGRESS;
    bool is_dropped = false;
    std::list<Message>::iterator place;

    // The receive that waits for the rest.
    PendingRequest* pending = nullptr;
    void* data = nullptr;
    size_t room = 0;
  };
  using Place = std::list<Message>::iterator;

  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user_data);
  Place oldest(uint64_t tag, uint64_t mask);
  void hand_over(Place message);

  std::list<Message> messages_;  // in the order of arrival
};

}  // namespace q7x2
