// ProcessGroupQ7x2: the c10d backend "q7x2". It is a thin adapter: it owns the parts of a group,
// and makes and destroys them. backend/collectives.h implements the calls of c10d, and
// backend/group_calls.h starts them.
//
// docs/c10d.md lists which of c10d's virtuals it implements, and why the others are absent.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/coded_options.h"
#include "backend/completion_hook.h"
#include "backend/group_calls.h"
#include "backend/torch_compat.h"
#include "executor/probe/survey.h"
#include "fabric/fabric.h"
#include "plan/choose/plan_cache.h"
#include "servers/server_group.h"
#include "transport/bootstrap/wire_up.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class KeyStore;
class PeerBootstrap;

class ProcessGroupQ7x2 final : public compat::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds op_timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("q7x2", op_timeout) {}

    /// The name of the group, for messages.
    std::string name() const { return group_name.empty() ? "unnamed" : group_name; }

    /// Whether to connect to all ranks when the group is made, instead of on first use.
    bool eager_connect = false;
    /// The only algorithms that may be chosen, for example "ring,sra"; empty: `Q7X2_ALGO`, or all.
    std::string algorithms;
    /// The path of uncompressed device tensors: "auto", "staged" or "direct"; empty:
    /// `Q7X2_DEVICE_PATH`, or "auto". The value on rank 0 counts.
    std::string device_path;
    /// Whether the group is one of a job: made by init_process_group or new_group.
    bool in_job = false;
    /// Whether the durations of calls may change a choice; see plan/choose/refinement.h. The value
    /// on rank 0 counts.
    bool refine = true;
  };

  /// Blocks until all ranks have arrived. They meet in `store`. In a group of a job whose ranks
  /// know each other, they meet directly.
  ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  /// A group of the members of a bootstrap. `store` is kept, but not used to meet. `fabric`: what
  /// this rank knows of the members; it is used if all ranks know the same. Null: nothing is known.
  ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, PeerBootstrap& bootstrap,
                   std::shared_ptr<const Fabric> fabric, c10::intrusive_ptr<Options> options);
  /// A group without members: every collective raises until c10d's reconfigure is called.
  struct WithoutMembers {};
  ProcessGroupQ7x2(WithoutMembers, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  ~ProcessGroupQ7x2() override;

  const std::string getBackendName() const override { return "q7x2"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<Options>& options() const { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// The Fabric of the group as far as it is known, without a wait for rates.
  std::shared_ptr<const Fabric> fabric() const { return plans_->fabric(); }
  /// The transports of the connection to `rank`, for example {"posix", "sysv"}; empty before first
  /// use.
  std::vector<std::string> transports(int rank);
  Group& group() { return *group_; }
  GroupCalls& calls() { return calls_; }
  const std::shared_ptr<Group>& group_pointer() const { return group_; }
  /// What calls on device tensors have copied so far.
  const BusTraffic& bus_traffic() const { return calls_.bus_traffic(); }
  /// The servers of the group, and what they have served; null: the group has no servers.
  const std::shared_ptr<ServerGroup>& servers() const { return servers_; }
  /// The choices so far, with their history.
  std::vector<PlanCache::Record> plan_records() const;
  /// The Fabric of the group as JSON; see fabric/json.h. Equal on all ranks. Waits for rates that
  /// are measured in the background.
  std::string fabric_json() const;
  /// Replaces the Fabric by another one of the same ranks, for collectives that begin later. All
  /// ranks must call it between the same two collectives. Throws Error(kInvalidArgument).
  void set_fabric(const std::string& json);

  /// In place. Each tensor is reduced separately.
  c10::intrusive_ptr<c10d::Work> coded_all_reduce(std::vector<at::Tensor>& tensors,
                                                  const CodedOptions& opts);
  /// Each input has world-size times as many elements as its output.
  c10::intrusive_ptr<c10d::Work> coded_reduce_scatter(std::vector<at::Tensor>& outputs,
                                                      std::vector<at::Tensor>& inputs,
                                                      const CodedOptions& opts);
  /// Each output has world-size times as many elements as its input.
  c10::intrusive_ptr<c10d::Work> coded_all_gather(std::vector<at::Tensor>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const CodedOptions& opts);

  // ------------------------------------------------------------------------------- collectives
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& output_lists, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // ---------------------------------------------------------------------------- point to point
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // --------------------------------------------------------------------------------- coalescing
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // ------------------------------------------------------------------------------------- groups
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;
  void eagerConnectSingleDevice(at::Device device) override;

  // ------------------------------------------------------------------------ groups without a store
  bool supportsShrinking() const override { return true; }
  /// Returns the group of the remaining ranks, which must all call it with the same list. It also
  /// works if this group has failed. `flags`: 1 aborts calls in progress, 0 waits for them. `opts`:
  /// null means this group's. A failure leaves this group unchanged, and may be retried.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  /// The handles of all ranks, for `reconfigured`.
  std::vector<std::string> handles() const;
  std::string own_handle() const override;

  struct Reconfiguration {
    std::string uuid;                  ///< no member may have used it before
    std::vector<std::string> handles;  ///< see transport/bootstrap/peer_address.h
    bool ordered = true;               ///< the rank is the index in the list
    std::chrono::milliseconds timeout = kBackendDefaultTimeout;
    ProcessGroupQ7x2* old = nullptr;  ///< the group whose Fabric and options are used; may be null
    std::string scope = {};           ///< the uuid must be new within this scope
    c10::intrusive_ptr<Options> options = {};
  };
  /// Makes a group of the processes that the handles name. All of them must call it with the same
  /// handles and uuid.
  static c10::intrusive_ptr<ProcessGroupQ7x2> reconfigured(
      const c10::intrusive_ptr<c10d::Store>& store, const Reconfiguration& how);

  // ---------------------------------------------------------------------------- state and hooks
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_.sequence(); }
  c10d::ErrorType getError() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Does nothing in a forked child, which has no pending works.
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {}
  void abort() override;
  void shutdown() override;

 private:
  c10::intrusive_ptr<compat::Window> make_window() override;
  compat::Listeners& listeners() override { return calls_.events(); }
  std::pair<int, int> take_members(std::string uuid, std::vector<std::string> handles, bool ordered,
                                   std::optional<std::chrono::milliseconds> timeout) override;
  /// Must be called first in every call: see GroupCalls::enter.
  void enter() const { calls_.enter(); }
  using LearnFabric =
      std::function<std::shared_ptr<const Fabric>(const std::shared_ptr<Group>& group)>;
  /// Makes the group with all other ranks, and gets its Fabric.
  void meet(Bootstrap& bootstrap, GroupTerms terms, const LearnFabric& learn);
  /// The same for a group of init_process_group, new_group or split, with its servers. `root`: the
  /// store without any prefixes. `members`: those that this rank knows already.
  void meet_in_job(Bootstrap& bootstrap, KeyStore& root, const std::vector<PeerInfo>& members);
  /// Meets the other ranks through the store, or directly if they know each other.
  void meet_all();
  static SurveyOptions survey_options(std::chrono::milliseconds timeout);
  /// Whether this rank may invite servers: rank 0 of a group of a job.
  bool invites_servers() const { return rank_ == 0 && size_ > 1 && options_->in_job; }
  /// The only algorithms that the group may use.
  std::string algorithms_of_group() const;
  void leave();
  /// The part of this group's Fabric for `members`; null if one of them is not in the group.
  std::shared_ptr<const Fabric> fabric_of(const std::vector<PeerInfo>& members) const;

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Runtime> runtime_;
  mutable std::shared_ptr<Runtime> reachable_;  // the runtime that the last handle leads to
  std::shared_ptr<Group> group_;
  std::shared_ptr<PlanCache> plans_;
  std::shared_ptr<DeferredRates> rates_;  // null: the group has its rates
  std::shared_ptr<ServerGroup> servers_;  // null: there are no servers
  GroupCalls calls_{{rank_, size_, runtime_, group_, plans_, rates_, servers_}, options_};
  std::atomic<uint32_t> shrinks_{0};        // number of attempts
  std::atomic<bool> has_successor_{false};  // whether a successor continues to use the store
  std::shared_ptr<CompletionHook> hook_;    // null: no hook is registered
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace q7x2
