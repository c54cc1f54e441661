// Requests in progress: what a task has asked UCX or shared memory to do, and what has completed.
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

/// What a message uses: UCX over the network that all hosts share, UCX over a private link of two
/// hosts, memory that two ranks of a host share, or many connections between two hosts.
enum class Wire : uint8_t { kShared, kPrivate, kMemory, kStream };

/// One request of a task. Owned by the pool, linked into its task while in progress.
///
/// A receive from any rank is several requests, one for each way by which a message may come. They
/// are rivals: the first that has a message takes the others back.
struct PendingRequest {
  Task* task = nullptr;
  uint32_t token = 0;  ///< the task's number for it
  int peer = -1;       ///< rank in the group; -1 for any source
  bool is_receive = false;
  Wire wire = Wire::kShared;
  bool completed = false;       ///< Completions has it, or had it
  bool in_inbox = false;        ///< receives: waits in the inbox of the group
  void* request = nullptr;      ///< UCX's handle, or the StreamLane's; null once it has completed
  UcpWorker* worker = nullptr;  ///< receives: the worker that UCX's handle belongs to
  RequestList* list = nullptr;  ///< the task's list
  Completions* completions = nullptr;
  PendingRequest* rival = nullptr;  ///< in a ring; null: there is none
  PendingRequest* previous = nullptr;
  PendingRequest* next = nullptr;

  // Set on completion, until the task is told.
  ucs_status_t status = UCS_OK;
  size_t length = 0;  ///< receives: length of the message
  uint64_t tag = 0;   ///< receives: tag of the message
  PendingRequest* next_complete = nullptr;
};

/// The requests of one task that are in progress.
class RequestList {
 public:
  bool is_empty() const { return first_ == nullptr; }
  /// The others follow by `next`.
  PendingRequest* first() const { return first_; }
  void add(PendingRequest& pending);
  void remove(PendingRequest& pending);

 private:
  PendingRequest* first_ = nullptr;
};

/// Requests that have completed, in order. Adding one needs no memory, because UCX's callbacks add
/// requests and must not throw.
class Completions {
 public:
  void add(PendingRequest& pending, ucs_status_t status, size_t length = 0, uint64_t tag = 0);
  /// Null if there is none.
  PendingRequest* take();

 private:
  PendingRequest* first_ = nullptr;
  PendingRequest* last_ = nullptr;
};

/// Memory for requests; it is reused.
class RequestPool {
 public:
  PendingRequest& take();
  void release(PendingRequest& pending);

 private:
  PendingRequest* free_ = nullptr;
  std::vector<std::unique_ptr<PendingRequest[]>> blocks_;
};

}  // namespace q7x2
