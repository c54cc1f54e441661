// GroupCalls: starts the calls of one group. It plans them, decides where their elements are,
// offers them to servers, and makes their tasks and their Work.
//
// The collectives (backend/collectives.h) get it as their argument `group`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/call_builder.h"
#include "backend/coalescing.h"
#include "backend/codec_cache.h"
#include "backend/completion_hook.h"
#include "backend/deferred_rates.h"
#include "backend/device_stream.h"
#include "backend/event_hooks.h"
#include "backend/time_estimate.h"
#include "backend/torch_compat.h"
#include "backend/work.h"
#include "executor/sparse/sparse_call.h"
#include "plan/choose/plan_cache.h"
#include "servers/offloaded_call.h"
#include "servers/server_group.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class GroupCalls {
 public:
  /// References to parts of the ProcessGroup, which may replace them between two calls. `group` is
  /// null while the group has no members.
  struct Parts {
    const int& rank;
    const int& size;
    const std::shared_ptr<Runtime>& runtime;
    const std::shared_ptr<Group>& group;
    const std::shared_ptr<PlanCache>& plans;
    const std::shared_ptr<DeferredRates>& rates;  ///< null: the group has its rates
    const std::shared_ptr<ServerGroup>& servers;  ///< null: the group has no servers
  };

  GroupCalls(Parts parts, c10::intrusive_ptr<c10d::Backend::Options> options)
      : parts_(parts), options_(std::move(options)), timeout_(options_->timeout) {}
  GroupCalls(const GroupCalls&) = delete;
  GroupCalls& operator=(const GroupCalls&) = delete;

  int rank() const { return parts_.rank; }
  int size() const { return parts_.size; }
  Runtime& runtime() const { return *parts_.runtime; }
  const std::shared_ptr<Runtime>& runtime_pointer() const { return parts_.runtime; }
  const std::shared_ptr<Group>& group() const { return parts_.group; }
  /// By which `call` is planned. A choice of its own says the same on all ranks.
  std::shared_ptr<Planner> planner_of(const CollectiveCall& call) const;
  const std::shared_ptr<ServerGroup>& servers() const { return parts_.servers; }
  CodecCache& codecs() { return codecs_; }
  const BusTraffic& bus_traffic() const { return *lanes_.traffic(); }

  /// Must be called first in every call: see Runtime::enter. Throws Error(kInvalidArgument) while
  /// the group has no members.
  void enter() const;
  /// The same, for collectives and messages. Returns a function that raises the errors of c10d's
  /// argument checks. The name of the call precedes each text.
  std::function<void(const std::string&)> enter(const char* call) const;

  /// The group's timeout if `timeout` is not set.
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const {
    return timeout < std::chrono::milliseconds::zero() ? timeout_.load() : timeout;
  }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  /// Throws c10::Error if the calls of this thread are estimated: `call` cannot be.
  void refuse_estimate(const char* call) const;
  /// c10d's sequence number of the group: the number of its collectives so far.
  uint64_t sequence() const { return sequence_; }
  void count_collective() { ++sequence_; }
  /// Numbers that count from 0, equal on all ranks. An estimate does not count.
  uint32_t next_barrier() { return barriers_++; }
  uint32_t next_window() { return windows_++; }
  uint64_t next_coded_call() { return estimate_.is_on() ? 0 : coded_calls_++; }
  /// Called when the group has other members: all numbers count from 0 again.
  void count_anew();

  c10::intrusive_ptr<c10d::Work> launch(CallBuilder&& builder);
  /// The same for calls without a Plan. `memory`: the host memory of each call. `served`: for each
  /// call its attempt by servers, or null; empty: no attempts.
  c10::intrusive_ptr<c10d::Work> launch_sparse(
      CallBuilder&& builder, std::vector<SparseCall> calls, const std::vector<TaskMemory>& memory,
      const std::vector<std::shared_ptr<OffloadedCall>>& served = {});
  /// A message to or from `peer`; -1: from any rank. The other arguments are passed to the Work.
  c10::intrusive_ptr<c10d::Work> message(c10d::OpType type, const char* title,
                                         const at::Tensor& tensor, int peer, int tag);

  Coalescing& coalescing() { return coalescing_; }
  TimeEstimate& estimate() { return estimate_; }
  EventHooks& events() { return *events_; }
  /// From now on `hook` is called for works that have ended.
  void set_hook(std::shared_ptr<CompletionHook> hook) { hook_ = std::move(hook); }

 private:
  /// Makes the task of a call, and before it the task of its attempt by servers, if any. Returns
  /// the task of the call if its tensors are on a device, otherwise null.
  std::shared_ptr<CollectiveTask> add_task(CallBuilder& builder, TensorCall& each,
                                           std::vector<std::shared_ptr<Task>>& tasks);
  /// A Work that is complete at once, for a call that is estimated and not made.
  c10::intrusive_ptr<c10d::Work> estimated(CallBuilder&& builder);
  c10::intrusive_ptr<c10d::Work> estimated(c10d::OpType type,
                                           std::vector<std::vector<at::Tensor>> results,
                                           double seconds);
  /// The attempt of a call by servers; null if servers do not serve the call.
  std::shared_ptr<OffloadedCall> attempt(CallBuilder& builder, const CollectiveCall& call);
  /// Begins to copy the inputs of the calls from their device to the host. `stays`: the elements
  /// stay on the device, and nothing is copied.
  std::vector<std::shared_ptr<InputLatch>> read_inputs(CallBuilder& builder, bool stays);
  /// The same for the memory of tasks: see CallBuffers::read. `peer`: see DeviceLanes.
  std::vector<std::shared_ptr<InputLatch>> read_device(CallBuffers& buffers,
                                                       const std::vector<TaskMemory>& tasks,
                                                       int peer);
  /// The latch that a message to `peer` must wait for. `inputs`: the latch of its own tensor, or
  /// null.
  std::shared_ptr<InputLatch> in_order(std::shared_ptr<InputLatch> inputs, int peer);
  c10::intrusive_ptr<c10d::Work> start(const c10::intrusive_ptr<WorkQ7x2>& work,
                                       std::vector<std::shared_ptr<Task>> tasks,
                                       std::shared_ptr<CallBuffers> buffers, bool caller_waits,
                                       std::vector<std::shared_ptr<Task>> after = {});

  const Parts parts_;
  const c10::intrusive_ptr<c10d::Backend::Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint32_t> barriers_{0};
  std::atomic<uint32_t> windows_{0};
  std::atomic<uint64_t> coded_calls_{0};
  CodecCache codecs_;
  DeviceLanes lanes_;
  std::atomic<bool> has_sent_from_device_{false};
  std::mutex sends_mutex_;                               // guards `last_sends_`
  std::map<int, std::weak_ptr<InputLatch>> last_sends_;  // the last send from a device, by peer
  Coalescing coalescing_;
  TimeEstimate estimate_;
  const std::shared_ptr<EventHooks> events_ = std::make_shared<EventHooks>();
  std::shared_ptr<CompletionHook> hook_;  // null: no hook is registered
};

/// Sets `CallShape::algorithms` for the collectives that this thread calls from now on. Returns the
/// old value. Throws as parse_algorithms.
std::string exchange_algorithms_of_thread(std::string algorithms);
const std::string& algorithms_of_thread();

}  // namespace q7x2
