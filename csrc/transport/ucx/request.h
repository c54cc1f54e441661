// Requests in progress: what a task has asked UCX or shared memory for, and what is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ucp/api/ucp.h>

namespace q7x2 {

class Completions;
class RequestList;
class Task;
class UcpWorker;

/// What a message goes over: the network that all hosts share, a private link of two hosts beside
/// it, or memory that two ranks of a host share.
enum class Wire : uint8_t { kShared, kPrivate, kMemory };

/// One request of a task. Owned by the pool, linked into its task while in progress.
struct PendingRequest {
  Task* task = nullptr;
  uint32_t token = 0;  ///< what the task calls it
  int peer = -1;       ///< rank in the group; -1 for any source
  bool is_receive = false;
  Wire wire = Wire::kShared;
  bool completed = false;       ///< UCX has called back
  bool in_inbox = false;        ///< receives: the inbox of the group has it, too
  void* request = nullptr;      ///< UCX's handle; null once it completed
  UcpWorker* worker = nullptr;  ///< receives: which one UCX's handle belongs to
  RequestList* list = nullptr;  ///< of the task
  Completions* completions = nullptr;
  PendingRequest* previous = nullptr;
  PendingRequest* next = nullptr;

  // When it is complete, until the task is told.
  ucs_status_t status = UCS_OK;
  size_t length = 0;  ///< receives: of the message
  uint64_t tag = 0;   ///< receives: of the message
  PendingRequest* next_complete = nullptr;
};

/// The requests of one task that are in progress.
class RequestList {
 public:
  bool is_empty() const { return first_ == nullptr; }
  /// Follow `next` to the others.
  PendingRequest* first() const { return first_; }
  void add(PendingRequest& pending);
  void remove(PendingRequest& pending);

 private:
  PendingRequest* first_ = nullptr;
};

/// Requests that are complete, in their order. Adding one needs no memory, because UCX's callbacks
/// add and must not throw.
class Completions {
 public:
  void add(PendingRequest& pending, ucs_status_t status, size_t length = 0, uint64_t tag = 0);
  /// Null: there is none.
  PendingRequest* take();

 private:
  PendingRequest* first_ = nullptr;
  PendingRequest* last_ = nullptr;
};

/// Memory for requests, reused.
class RequestPool {
 public:
  PendingRequest& take();
  void release(PendingRequest& pending);

 private:
  PendingRequest* free_ = nullptr;
  std::vector<std::unique_ptr<PendingRequest[]>> blocks_;
};

}  // namespace q7x2
