// ProcessGroupQ7x2: the c10d backend "q7x2". A thin adapter: it checks the arguments of each c10d
// call, turns them into a collective call or a message, and hands that to the executor.
//
// docs/c10d.md lists which of c10d's virtuals it implements, and why the others are absent.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/completion_hook.h"
#include "backend/tensor_call.h"
#include "backend/torch_compat.h"
#include "backend/work.h"
#include "executor/probe/survey.h"
#include "executor/residence/residence.h"
#include "fabric/fabric.h"
#include "plan/choose/plan_cache.h"
#include "servers/offloaded_call.h"
#include "servers/server_group.h"
#include "transport/bootstrap/server_roll.h"
#include "transport/bootstrap/wire_up.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class PeerBootstrap;
struct SparseCall;

class ProcessGroupQ7x2 final : public compat::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds op_timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("q7x2", op_timeout) {}

    /// Of the group, in messages.
    std::string name() const { return group_name.empty() ? "unnamed" : group_name; }

    /// Connects to all ranks when the group is made, not on first use.
    bool eager_connect = false;
    /// Only these algorithms may be chosen, for example "ring,sra"; empty: `Q7X2_ALGO`, or all.
    std::string algorithms;
    /// How uncompressed tensors on a device pass: "auto", "staged" or "direct"; empty:
    /// `Q7X2_DEVICE_PATH`, or "auto". What rank 0 says counts.
    std::string device_path;
    /// The group is one of a job: of init_process_group and new_group.
    bool in_job = false;
    /// The durations of calls may change a choice; see plan/choose/refinement.h. What rank 0 says
    /// counts.
    bool refine = true;
  };

  /// Blocks until all ranks have come. They meet in `store`, or directly if it is a group of the
  /// job's and they know each other.
  ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  /// A group of a bootstrap's members, without a store: `store` is only kept. `fabric`: what this
  /// rank knows of the members; it is used if all know the same. Null: nothing.
  ProcessGroupQ7x2(const c10::intrusive_ptr<c10d::Store>& store, PeerBootstrap& bootstrap,
                   std::shared_ptr<const Fabric> fabric, c10::intrusive_ptr<Options> options);
  /// Without members until c10d's reconfigure is called: every collective raises.
  struct WithoutMembers {};
  ProcessGroupQ7x2(WithoutMembers, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   c10::intrusive_ptr<Options> options);
  ~ProcessGroupQ7x2() override;

  const std::string getBackendName() const override { return "q7x2"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<Options>& options() const { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// What `CallShape::algorithms` of this thread's collectives is from now on; returns what it was.
  /// Throws as parse_algorithms does.
  static std::string exchange_algorithms(std::string algorithms);
  static const std::string& algorithms_of_thread();
  Planner& planner() { return *planner_; }
  /// Transports of the connection to `rank`, for example {"posix", "sysv"}; empty before first use.
  std::vector<std::string> transports(int rank);
  Group& group() { return *group_; }
  const std::shared_ptr<Group>& group_pointer() const { return group_; }
  /// What calls on device tensors have moved so far.
  const BusTraffic& bus_traffic() const { return *lanes_.traffic(); }
  /// The servers of the group, and what they have served; null: it has none.
  const std::shared_ptr<ServerGroup>& servers() const { return servers_; }
  /// The choices so far, and how they came about.
  std::vector<PlanCache::Record> plan_records() const;
  /// What the group knows of its hosts and network; see fabric/json.h. Equal on all ranks.
  std::string fabric_json() const;
  /// Has the planner choose by another Fabric of the same ranks. Collectives that have begun keep
  /// their Plans. All ranks must call it between the same two collectives. Throws
  /// Error(kInvalidArgument).
  void set_fabric(const std::string& json);

  // ---------------------------------------------------------------------- compressed collectives
  /// How a collective is compressed; see kernels/codec/codec_spec.h for the names of codecs.
  struct CodedOptions {
    std::string codec = "none";  ///< "auto": the cheapest within `max_error`, or none
    /// Of "auto": the relative error (L2) that one rounding of normal numbers may have.
    double max_error = 0;
    c10d::ReduceOp op = c10d::ReduceOp::SUM;
    /// One a tensor, fp32, as many elements: added to what this rank gives, and what was lost is
    /// kept in them. Empty: what is lost is lost.
    std::vector<at::Tensor> errors = {};
    uint64_t seed = 0;
    /// Random numbers go by it, the same on all ranks; none: the group's compressed calls so far.
    std::optional<uint64_t> step = {};
    /// Infinities or NaNs in the result are an error, on every rank that has them.
    bool refuses_nonfinite = false;
    EdgeWish edges = EdgeWish::kAuto;  ///< which messages are compressed
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool async_op = true;
  };
  /// In place; each tensor by itself.
  c10::intrusive_ptr<c10d::Work> coded_all_reduce(std::vector<at::Tensor>& tensors,
                                                  const CodedOptions& opts);
  /// Each input has world-size times the elements of its output.
  c10::intrusive_ptr<c10d::Work> coded_reduce_scatter(std::vector<at::Tensor>& outputs,
                                                      std::vector<at::Tensor>& inputs,
                                                      const CodedOptions& opts);
  /// Each output has world-size times the elements of its input.
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

  // ------------------------------------------- groups without a store
  // (backend/shrink_reconfigure.cpp)
  bool supportsShrinking() const override { return true; }
  /// The group of the remaining ranks, which all call it with the same list. It works if this group
  /// has failed. `flags` 1 aborts what is in progress; 0 waits for it. The options are this group's
  /// unless `opts` has others. Every failure leaves this group as it is, and may be retried.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  /// How all ranks can be reached, for `reconfigured`.
  std::vector<std::string> handles() const;
  std::string own_handle() const override;

  struct Reconfiguration {
    std::string uuid;                  ///< not used before by any member
    std::vector<std::string> handles;  ///< see transport/bootstrap/peer_address.h
    bool ordered = true;               ///< the rank is the place in the list
    std::chrono::milliseconds timeout = kBackendDefaultTimeout;
    ProcessGroupQ7x2* old = nullptr;  ///< whose Fabric and options are used; may be null
    std::string scope = {};           ///< within which the uuid must be new
    c10::intrusive_ptr<Options> options = {};
  };
  /// A group of the processes that the handles name, which all call it with the same handles and
  /// uuid.
  static c10::intrusive_ptr<ProcessGroupQ7x2> reconfigured(
      const c10::intrusive_ptr<c10d::Store>& store, const Reconfiguration& how);

  // ---------------------------------------------------------------------------- state and hooks
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// A forked child has none.
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {}  // times are always there
  void abort() override;
  void shutdown() override;

 private:
  /// One c10d call on its way to the executor.
  struct Launch {
    c10d::OpType type;
    const char* title;
    ProfiledInputs profiled_inputs;
    std::vector<std::vector<at::Tensor>> results;  // lists of them
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool async_op = true;
    std::shared_ptr<HostBuffers> buffers = std::make_shared<HostBuffers>();
    std::vector<TensorCall> calls = {};
    std::vector<std::pair<at::Tensor, at::Tensor>> copies = {};  // from, to; of results
    std::vector<std::shared_ptr<Task>> after = {};               // must be complete as well
  };
  /// Makes the residence of a call whose elements stay on a device, from the latch of its inputs.
  /// Null: they are in host memory, or are staged there.
  using MakeResidence = std::function<std::unique_ptr<Residence>(std::shared_ptr<InputLatch>)>;

  c10::intrusive_ptr<c10d::Work> launch(Launch&& launch);
  /// The attempt of a call by servers; null: it is none for them.
  std::shared_ptr<OffloadedCall> attempt(Launch& launch, const CollectiveCall& call);
  /// The same for calls that have no Plan. `memory`: of each call, on the host. `served`: of each
  /// call, its attempt by servers or null; empty: there are none.
  c10::intrusive_ptr<c10d::Work> launch_sparse(
      Launch&& launch, std::vector<SparseCall> calls, const std::vector<TaskMemory>& memory,
      const std::vector<std::shared_ptr<OffloadedCall>>& served = {});
  c10::intrusive_ptr<c10d::Work> message(c10d::OpType type, const char* title,
                                         std::vector<at::Tensor>& tensors, int peer, int tag);
  c10::intrusive_ptr<c10d::Work> start(const c10::intrusive_ptr<WorkQ7x2>& work,
                                       std::vector<std::shared_ptr<Task>> tasks,
                                       std::shared_ptr<HostBuffers> buffers, bool caller_waits,
                                       std::vector<std::shared_ptr<Task>> after = {});
  /// Begins to copy to the host what the tasks of a call read on its device: see HostBuffers::read.
  /// `peer`: see DeviceLanes.
  std::vector<std::shared_ptr<InputLatch>> read_device(HostBuffers& buffers,
                                                       const std::vector<TaskMemory>& tasks,
                                                       int peer);
  /// The same for all calls of a launch. `stays`: their elements stay on the device.
  std::vector<std::shared_ptr<InputLatch>> read_inputs(Launch& launch, bool stays);
  /// What a message to `peer` waits for, which itself waits for `inputs`.
  std::shared_ptr<InputLatch> in_order(std::shared_ptr<InputLatch> inputs, int peer);
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const;
  std::pair<int, int> take_members(std::string uuid, std::vector<std::string> handles, bool ordered,
                                   std::optional<std::chrono::milliseconds> timeout) override;
  /// The first thing in every call: see Runtime::enter. Throws Error(kInvalidArgument) as long as
  /// the group has no members.
  void enter() const;
  /// The same, for collectives and messages. Returns what raises the errors of c10d's
  /// argument checks, with the name of the call before them.
  std::function<void(const std::string&)> enter(const char* call) const;
  void add_to_coalescing(const c10::intrusive_ptr<WorkQ7x2>& work);

  /// Checks what all compressed collectives have in common; `inputs` are what is encoded.
  void check_coded(const std::function<void(const std::string&)>& complain,
                   const std::vector<at::Tensor>& inputs, const CodedOptions& opts) const;
  void check_not_balanced(const std::function<void(const std::string&)>& complain,
                          const CodedOptions& opts);
  std::shared_ptr<const Codec> codec(const std::string& name);
  bool adds_integers(const CodedOptions& opts);
  using LearnFabric =
      std::function<std::shared_ptr<const Fabric>(const std::shared_ptr<Group>& group)>;
  /// Makes the group with all other ranks, and learns its Fabric.
  void meet(Bootstrap& bootstrap, GroupTerms terms, const LearnFabric& learn);
  /// The same for a group of init_process_group, new_group or split, with its servers. `root`: the
  /// store below all prefixes. `members`: as this rank knows them before; empty: it does not.
  void meet_in_job(Bootstrap& bootstrap, KeyStore& root, const std::vector<PeerInfo>& members);
  /// Meets the other ranks through the store, or directly if they know each other.
  void meet_all();
  static SurveyOptions survey_options(std::chrono::milliseconds timeout);
  /// `servers`: see SurveyOptions; null: there are none.
  std::shared_ptr<const Fabric> measured(const std::shared_ptr<Group>& group,
                                         std::function<std::vector<std::string>()> servers) const;
  /// Whether this rank may invite servers: rank 0 of a group of a job.
  bool invites_servers() const { return rank_ == 0 && size_ > 1 && options_->in_job; }
  /// Whether any servers may have to be invited.
  bool awaits_servers(KeyStore& root) const;
  /// The same for a group that needs no store: no, if the job's does not answer.
  bool may_await_servers(KeyStore& root) const;
  /// Where `invites_servers`: the servers of the job that have come.
  ServerMeeting invited_servers(KeyStore& root) const;
  /// The same for a group that needs no store: none, if the job's does not answer.
  ServerMeeting servers_of_successor() const;
  /// Makes the server group, if servers have come. All ranks call it. `invited`: on rank 0.
  /// `surveyed`: the group's Fabric; servers that are not in it have the default rates.
  void meet_servers(Bootstrap& bootstrap, ServerMeeting invited, Fabric surveyed);
  DevicePath device_path_of_options() const;
  /// The algorithms to which the group is confined.
  std::string algorithms_of_group() const;
  void leave();
  /// The part of this group's Fabric that concerns `members`; null if one of them is not in it.
  std::shared_ptr<const Fabric> fabric_of(const std::vector<PeerInfo>& members) const;
  void await_calls(std::chrono::milliseconds timeout) const;
  /// Null where sending as it is takes the least time.
  std::shared_ptr<const Codec> cheapest_codec(CollectiveCall call, double max_error);
  /// What compresses the messages of a call; null: they are sent as they are.
  std::shared_ptr<const Codec> codec_of(const CollectiveCall& call, const CodedOptions& opts);
  /// Decides where the elements of calls are, before their regions have addresses.
  MakeResidence choose_residence(std::vector<TensorCall>& calls);
  /// Whether UCX gets memory of `device` in such calls. All ranks say the same. Throws c10::Error
  /// if it must, and cannot.
  bool goes_directly(const std::vector<TensorCall>& calls, const c10::Device& device) const;
  /// Whether this rank knows the call's Plan, and no device runs it.
  bool is_staged_by_plan(const CollectiveCall& call, bool has_errors) const;
  /// Says how the call that was added last, of tensor `index`, is compressed, if it is.
  void add_coding(Launch& launch, const CodedOptions& opts, size_t index, uint64_t step);
  /// A reduction with a codec that `adds_integers`: all_reduce, if outputs and inputs are the same,
  /// else reduce_scatter.
  c10::intrusive_ptr<c10d::Work> add_integers(Launch call, const std::vector<at::Tensor>& outputs,
                                              const std::vector<at::Tensor>& inputs,
                                              const CodedOptions& opts, uint64_t step);

  /// The all-reduce that leaves out blocks of zeros; see executor/sparse/sparse_all_reduce.h.
  c10::intrusive_ptr<c10d::Work> block_all_reduce(std::vector<at::Tensor>& tensors,
                                                  const CodedOptions& opts);
  void add_all_reduce(Launch& launch, const at::Tensor& tensor, const Reduction& reduction);
  void add_all_gather(Launch& launch, const at::Tensor& input,
                      const std::vector<at::Tensor>& outputs);
  void add_into_tensor(Launch& launch, const at::Tensor& output, const at::Tensor& input);
  /// `inputs`: a tensor for each rank, or one with a part for each.
  void add_reduce_scatter(Launch& launch, const at::Tensor& output,
                          const std::vector<at::Tensor>& inputs, const Reduction& reduction);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensors(
      c10d::OpType type, const char* title, const std::function<void(const std::string&)>& complain,
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts);

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Runtime> runtime_;
  mutable std::shared_ptr<Runtime> reachable_;  // which the last handle leads to
  std::shared_ptr<Group> group_;
  std::shared_ptr<Planner> planner_;
  std::shared_ptr<PlanCache> plans_;
  std::shared_ptr<ServerGroup> servers_;  // null: there are no servers
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint32_t> barriers_{0};
  std::atomic<uint64_t> coded_calls_{0};
  std::atomic<uint32_t> shrinks_{0};        // attempts
  std::atomic<bool> has_successor_{false};  // which goes on with the store

  std::mutex codecs_mutex_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;  // those in use, by given name

  DeviceLanes lanes_;
  std::atomic<bool> has_sent_from_device_{false};
  std::mutex sends_mutex_;                               // guards the next
  std::map<int, std::weak_ptr<InputLatch>> last_sends_;  // from a device, by peer

  std::mutex coalescing_mutex_;
  std::optional<std::vector<c10::intrusive_ptr<WorkQ7x2>>> coalescing_;
  size_t coalescing_limit_ = 0;  // as many works at least before those that succeeded are let go

  std::shared_ptr<CompletionHook> hook_;  // null: none is registered

  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace q7x2
