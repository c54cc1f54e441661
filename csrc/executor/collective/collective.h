// CollectiveTask: one collective in progress, a Plan run over the caller's buffers.
//
// The data is cut into slices (executor/call/slicing.h), and the Plan's DAG runs once for each: a
// bounded window of slices at a time (plan/ir/dag_window.h), each with its own scratch memory.
// Sends and receives complete when UCX says so. What ops do to memory are jobs
// (executor/call/op_job.h), which run without the reactor's lock; those of a few KiB run at once.
//
// Between ranks that share memory a send copies its block into this rank's arena, once for all its
// receivers, and is complete. A receive into a scratch block moves nothing: until the slice is
// complete, or something else is written to it, the block *is* the sender's memory. So it is with
// coded blocks, and what is encoded for ranks of this host is encoded into the arena. A place in
// the window is used again when all receivers are done with what was staged for its slice.
//
// The choice of a Plan may come later than the task: until then the task waits for its turn. Some
// calls have a prerequisite, a collective of its own that is submitted right before the call: the
// announcement of rank 0's choice before the first call of a kind, tuning rounds of the choice, and
// rate samples at links and processors (plan/choose/plan_cache.h).
//
// The call's Residence knows where the elements are, and who runs jobs on them
// (executor/residence/residence.h). A slice begins when its input has arrived. Until then it waits
// for this rank's device alone, so ranks never wait for each other in a circle.
//
// A codec that selects looks at the whole input before the first slice: one more job.
//
// Where a codec balances the parts of an all-reduce, an all-reduce of counts runs before it, and
// says how it is cut (plan/ir/owner_ranges.h). Until then the task waits for its turn. What is
// counted is selected in the caller's thread, while the task is made.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "executor/call/block_coder.h"
#include "executor/call/collective_call.h"
#include "executor/call/op_job.h"
#include "executor/call/slicing.h"
#include "executor/collective/plan_call.h"
#include "executor/collective/shared_staging.h"
#include "executor/residence/residence.h"
#include "executor/residence/residence_job.h"
#include "plan/ir/dag_window.h"
#include "servers/offload_attempt.h"
#include "servers/offloaded_call.h"
#include "transport/group/group.h"
#include "transport/run/scratch_pool.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/input_latch.h"
#include "transport/task/task.h"

namespace q7x2 {

class CollectiveTask final : public Task {
 public:
  /// A task of a user's call: one of many, whose memory is used again.
  static std::shared_ptr<CollectiveTask> make(std::shared_ptr<Group> group, PlannedCall&& planned,
                                              std::shared_ptr<void> keep_alive,
                                              std::chrono::milliseconds timeout);

  /// The memory in the call must stay until `keep_alive` is dropped, which happens when the task
  /// goes. With a codec that balances parts, reads the whole input at once.
  CollectiveTask(std::shared_ptr<Group> group, PlannedCall&& planned,
                 std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout);
  ~CollectiveTask() override;

  /// Before it is submitted: where its elements are. Without it: in host memory.
  void set_residence(std::unique_ptr<Residence> residence);

  /// Before it is submitted, right after the attempt of servers: it only runs if that fails.
  void set_offload(std::shared_ptr<OffloadedCall> served) { offload_ = std::move(served); }
  /// Before it is submitted: it is the attempt of servers.
  void set_attempt(std::shared_ptr<OffloadAttempt> attempt) { attempt_ = std::move(attempt); }

  /// What a vote on an attempt is about (servers/offloaded_call.h).
  struct Vote {
    std::shared_ptr<const ServerGroup> servers;
    std::shared_ptr<InputLatch> cast;  ///< open when the attempt is done
    std::weak_ptr<const Task> call;    ///< which the vote precedes
  };
  /// Before it is submitted: it is such a vote. It ends at once where the server group has been
  /// dropped.
  void set_vote(Vote vote);

  std::string name() const override;
  bool takes_turn() const override { return true; }
  bool is_attempt() const override { return attempt_ != nullptr; }
  /// What precedes a call brings news that all ranks must have, and servers count on a call. Who
  /// waits for a call of a device may have gone on, so that only a later call can raise its error.
  /// Without a rank that has left no later call succeeds, so nobody needs the news.
  bool can_fail_alone(bool waits) const override {
    if (attempt_ || offload_ || voted_on_ || is_of_device()) return false;
    return lacks_rank_ ||
           (!is_prerequisite_ && (waits || !prerequisite_) && !no_prerequisite_ && !counting_);
  }
  int first_server() const override {
    return attempt_ ? attempt_->grant()->first_server() : Task::first_server();
  }
  bool is_recorded() const override { return true; }
  void describe(FlightRecord& record) const override;
  void report(FlightRecord& record, NameTable& names) const override;
  /// Only after `done`.
  const std::string& algorithm() const { return run_by().choice_.plan->algorithm; }

 private:
  class PlanningJob;
  class SelectionJob;
  using Step = DagWindow::Step;

  /// Whether a stage of a slice has its block yet.
  enum class StageState : uint8_t { kNo, kOnItsWay, kYes };
  /// The memory of a slice in progress.
  struct Place {
    explicit Place(std::pmr::memory_resource* memory)
        : staged(memory), scratch_at(memory), coded_at(memory), held(memory) {}

    size_t slice = 0;
    Residence::Memory own;                    // of blocks and messages
    std::pmr::vector<StageState> staged;      // by stage
    std::pmr::vector<std::byte*> scratch_at;  // by scratch block: where it lies now
    std::pmr::vector<Region> coded_at;        // by coded block: its message
    std::pmr::vector<std::pair<int, ShmChannel::Message>>
        held;  // (source, message), until the slice ends
  };

  // Hooks of Task.

  /// Called once, when the task is submitted: here calls get their numbers.
  std::shared_ptr<Task> prerequisite(Locked& locked) override;
  bool reserve(Locked& locked) override;
  void start(Locked& locked) override;
  void completed(Locked& locked, uint32_t token, size_t length, uint64_t tag) override;
  void arrived(Locked& locked, uint32_t token, const ShmChannel::Message& message) override;
  void truncated(Locked& locked, uint32_t token, uint64_t tag) override;
  void worked(Locked& locked, Job& job) override;
  void stranded(Locked& locked, const Error& error) override { go_wrong(locked, error); }
  void published(Locked& locked) override;
  void timed_out(Locked& locked) override;
  bool stalled(Locked& locked) override;
  void inputs_arrived(Locked& locked) override;

  // collective_prerequisites.cpp: what precedes a call.

  /// The broadcast of rank 0's choice, the all-reduce of what the ranks have measured, that of what
  /// they have sent and computed, and that of what they are about to send.
  std::shared_ptr<CollectiveTask> announcement();
  std::shared_ptr<CollectiveTask> tune();
  using RateSample = PlanCache::Entry::RateSample;
  std::shared_ptr<CollectiveTask> rate_sample(RateSample look);
  std::shared_ptr<CollectiveTask> sum_of_counts(std::shared_ptr<PlanCache::Entry> entry) const;
  /// Whether this is a tuning round or a rate sample that has nothing to bring.
  bool is_idle() const;
  /// Of a tuning round and a rate sample: what this rank has to say. A rate sample may plan first,
  /// as a job.
  void contribute(Locked& locked);
  std::shared_ptr<CollectiveTask> before_this(CollectiveCall call, size_t bytes,
                                              std::shared_ptr<PlanCache::Entry> entry);
  /// Of a prerequisite: what it brings.
  std::span<std::byte> memory() const { return {call_.output[0].data, call_.output[0].bytes}; }
  /// Takes over what the prerequisite has brought.
  void take_news();

  // collective_offload.cpp: calls that servers attempt.

  bool was_served() const { return offload_ && offload_->was_served(); }
  /// Of an attempt: nobody makes it.
  bool is_declined() const { return attempt_ && attempt_->is_declined(); }
  /// The task that has brought the result.
  const CollectiveTask& run_by() const {
    return was_served() ? static_cast<const CollectiveTask&>(*offload_->task()) : *this;
  }
  /// Of a vote: true until the attempt is done, and when that does not matter any more.
  bool awaits_attempt(Locked& locked);
  /// Begins to put back what the attempt may have overwritten.
  void restore(Locked& locked);

  // collective.cpp: the life of the task.

  /// Prepares everything that depends on the Plan. `counts`: the parts are balanced.
  void adopt(const Choice& choice, bool counts);
  /// False until the choice is there.
  bool has_plan();
  /// What precedes it has failed, or a rank that it needs has left: it fails when it begins.
  bool is_hopeless() const;
  /// How many slices may be in progress at once.
  size_t window() const;
  Residence::Run run_of_residence() { return {call_, choice_, slicing_, coder_.get()}; }
  /// Gives out the job that takes the elements in or out, for its next step.
  void move(Locked& locked);
  /// The step that `move` has begun is complete.
  void moved(Locked& locked);
  /// Starts slices as far as the window goes, their input is there and staging is returned.
  void admit_slices(Locked& locked);
  /// Before the first slice: the memory of all places.
  void prepare_places();
  void run_ready(Locked& locked);
  void run(Locked& locked, Step step);
  void complete(Locked& locked, Step step);
  void complete_last_slice(Locked& locked);
  /// All results are where they belong.
  void conclude(Locked& locked);
  /// It goes wrong: on all ranks, and for some calls with the whole group (Group::fail_call).
  void go_wrong(Locked& locked, const Error& error);
  /// After an error: gives back what other ranks have staged, and has its own staging freed.
  void let_go(Locked& locked);

  // collective_ops.cpp: where blocks lie, and what ops do to them.

  const Op& op_of(Step step) const { return choice_.plan->ops[step.op]; }
  std::byte* own_scratch(const Place& place, size_t index) const {
    return place.own.blocks + index * choice_.part_bytes;
  }
  std::byte* own_coded(const Place& place, size_t index) const {
    return place.own.messages + index * coder_->max_bytes();
  }
  /// `length`: of the block's elements; a coded block is as long as its message.
  Region region(const Place& place, const Block& block, size_t length) const;
  /// The same for a block that is about to be overwritten.
  Region writable(Place& place, const Block& block, size_t length) const;
  /// False, and the group ends, where `region` is shorter than the op that is to use it.
  bool covers(Locked& locked, const Region& region, size_t length);
  OpJob& job_of(Step step, OpJob::Kind kind, size_t length);
  /// What a copy or a reduction is to do. Null: nothing, or the group has ended.
  OpJob* copy(Locked& locked, Step step, size_t length);
  OpJob* fold(Locked& locked, Step step, size_t length);
  void launch(Locked& locked, OpJob& job);
  void accept(Locked& locked, OpJob& job);
  /// For the task's record, and for rate samples.
  void note_times(const OpJob& job);

  // collective_coded.cpp: ops on coded blocks, selections, balanced parts.

  void prepare_coder(bool counts);
  /// Passes over the tensor as the codec wants it, and counts what is sent where parts are
  /// balanced.
  void select(bool counts);
  /// Gives out the job that selects what is sent.
  void begin_selection(Locked& locked);
  /// False until the counts of all ranks are there.
  bool cut_by_counts();
  bool touches_coded(const Op& op) const;
  OpJob* copy_coded(Locked& locked, Step step, size_t length);
  OpJob* fold_coded(Locked& locked, Step step, size_t length);
  /// Copies the rank's contribution, with its residual, to a block that is sent as it is.
  OpJob* add_residual(Step step, const Region& source, const BlockCoder::Place& at);
  /// Whether results are looked at for what is not finite.
  bool inspects(const Op& op) const {
    return coder_ && call_.coding.refuses_nonfinite && op.destination.is_part();
  }
  /// Where the message that an op makes is to be put.
  std::byte* message_of(Step step);
  BlockCoder::Place coding_place(const Op& op, size_t slice) const;

  // collective_messages.cpp: messages, and the check that ranks agree.

  /// Whether messages to and from `peer` go through shared memory. Both ranks say the same.
  bool shares_memory(int peer) const {
    return !call_.is_direct && group().messages().shares_memory(peer);
  }
  /// Over what other messages go to and from `peer`. Both ranks say the same, because all ranks
  /// know for which Fabric the choice was made: a private link that is slow now is not in it.
  Wire wire(int peer) const;
  void send(Locked& locked, Step step, size_t length);
  /// To a rank of this host: the block is staged, or a descriptor carries it.
  void post(Locked& locked, Step step);
  void receive(Locked& locked, Step step, size_t length);
  /// Gives a message in shared memory to its op.
  void take(Locked& locked, Step step, const ShmChannel::Message& message);
  /// What a receive has brought is where it belongs.
  void received(Locked& locked, Step step);
  /// `is_shared`: it came through shared memory.
  bool is_expected(Step step, uint64_t tag, size_t length, bool is_shared) const;
  /// Of the messages of one op.
  uint64_t fingerprint(const Op& op) const;
  void mismatch(Locked& locked, int peer);

  CollectiveCall call_;
  std::shared_ptr<void> keep_alive_;
  std::shared_ptr<PlanCache::Entry> entry_;
  const std::shared_ptr<PlanCache> plans_;
  uint64_t number_ = 0;                             // among the calls of the entry
  std::shared_ptr<CollectiveTask> prerequisite_;    // until its news are taken over
  std::exception_ptr no_prerequisite_;              // why it could not be made
  std::weak_ptr<const Task> call_of_prerequisite_;  // the call that this is one of
  bool is_prerequisite_ = false;
  bool lacks_rank_ = false;                      // it goes wrong because a rank has left
  std::shared_ptr<PlanCache::Entry> tuned_;      // if this is a tuning round
  std::shared_ptr<PlanCache::Entry> sampled_;    // if this is a rate sample
  std::unique_ptr<Job> planning_;                // until it has run
  std::shared_ptr<OffloadedCall> offload_;       // null: no server attempts the call
  std::shared_ptr<OffloadAttempt> attempt_;      // if this is one
  std::shared_ptr<const ServerGroup> voted_on_;  // if this is a vote
  std::unique_ptr<Job> restoring_;               // until it has run
  Choice choice_;
  size_t choice_index_ = 0;
  bool is_measured_ = false;
  int64_t began_ = 0;  // by the clock of the plans
  Slicing slicing_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<BlockCoder> coder_;            // of coded calls
  std::unique_ptr<Residence> chosen_residence_;  // null: the host
  Residence* residence_ = &Host::of_process();
  std::unique_ptr<ResidenceJob> moving_;  // as long as elements enter or leave
  bool is_moving_ = false;                // that job has begun
  std::unique_ptr<Job> selection_;        // until it has run
  bool is_selecting_ = false;
  std::shared_ptr<std::vector<int32_t>> counts_;  // where parts are balanced: of what is sent
  std::shared_ptr<CollectiveTask> counting_;      // adds them over all ranks
  // Of the lists below: a small call needs no other. Under the lock.
  std::array<std::byte, 4096> own_memory_;
  std::pmr::monotonic_buffer_resource memory_{own_memory_.data(), own_memory_.size()};
  SharedStaging staging_{&memory_};
  bool is_stalled_ = false;
  DagWindow dag_{&memory_};
  std::pmr::vector<Place> places_{&memory_};
  OpJobs jobs_{&memory_};
  WorkTimes work_;
  std::vector<Step> awaiting_stage_;  // sends of blocks that are on their way to their stage
  bool is_running_ready_ = false;
  std::shared_ptr<const Fabric> fabric_;  // that the choice was made for; null: as measured
  RateSample rate_sample_ = RateSample::kNothing;  // what a rate sample is for
  uint64_t number_of_call_ = 0;                    // before which it is
};

}  // namespace q7x2
