// CollectiveTask: one collective in progress, a Plan run over the caller's buffers.
//
// The data is cut into slices (executor/call/slicing.h), and the Plan's DAG runs once for each: a
// bounded window of slices at a time (plan/ir/dag_window.h). This class runs the DAG. It knows in
// which order things happen, and what follows from what:
//
//   CallRun        the call, the choice that it is made by, and where its elements are
//   BlockMap       where the blocks of the slices in progress lie
//   OpWork         what ops do to memory: jobs
//   MessagePorts   messages, and the check that all ranks make the same call
//   Prerequisite   what a collective that precedes a call is for
//
// Jobs run without the reactor's lock; those of a few KiB run at once, with it.
//
// A call that has a prerequisite waits for its turn until that is complete. Then it has its Plan.
//
// The call's Residence knows where the elements are, and who runs jobs on them
// (executor/residence/residence.h). A slice begins when its input has arrived. Until then it waits
// for this rank's device alone, so ranks never wait for each other in a circle. A place in the
// window is used again when all receivers are done with what was staged for its slice.
//
// Before the first slice the input may have to be prepared, the elements to enter their residence,
// and the codec to select what is sent. After the last one the elements may have to leave.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <string>

#include "executor/call/op_job.h"
#include "executor/collective/block_map.h"
#include "executor/collective/call_run.h"
#include "executor/collective/input_selection.h"
#include "executor/collective/message_ports.h"
#include "executor/collective/op_work.h"
#include "executor/collective/plan_call.h"
#include "executor/collective/prerequisite.h"
#include "executor/residence/residence.h"
#include "executor/residence/residence_job.h"
#include "plan/ir/dag_window.h"
#include "transport/group/group.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/input_latch.h"
#include "transport/task/task.h"

namespace q7x2 {

class CollectiveTask : public Task {
 public:
  /// A task of a user's call: one of many, whose memory is used again.
  static std::shared_ptr<CollectiveTask> make(std::shared_ptr<Group> group, PlannedCall&& planned,
                                              std::shared_ptr<void> keep_alive,
                                              std::chrono::milliseconds timeout);
  /// The collective that `what` is for, to be submitted before `call`.
  static std::shared_ptr<CollectiveTask> before(const Task& call,
                                                std::shared_ptr<Prerequisite> what);

  /// The memory in the call must stay until `keep_alive` is dropped, which happens when the task
  /// goes. With a codec that balances parts, reads the whole input at once.
  CollectiveTask(std::shared_ptr<Group> group, PlannedCall&& planned,
                 std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout);

  /// Before it is submitted: where its elements are. Without it: in host memory.
  void set_residence(std::unique_ptr<Residence> residence);
  /// Before it is submitted: `what` precedes it, directly. Not if its codec balances parts.
  void set_prerequisite(std::shared_ptr<Prerequisite> what);

  std::string name() const override;
  bool takes_turn() const override { return true; }
  /// What precedes a call brings news that all ranks must have. Who waits for a call of a device
  /// may have gone on, so that only a later call can raise its error. Without a rank that has left
  /// no later call succeeds, so nobody needs the news.
  bool can_fail_alone(bool waits) const override {
    if (is_of_device()) return false;
    return lacks_rank_ || (!purpose_ && (waits || !prerequisite_) && !no_prerequisite_);
  }
  bool is_recorded() const override { return true; }
  void describe(FlightRecord& record) const override;
  void report(FlightRecord& record, NameTable& names) const override;
  /// Only after `done`.
  const std::string& algorithm() const { return run_.plan().algorithm; }

 protected:
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

  /// What the ranks must agree on, as one number.
  uint64_t fingerprint() const { return run_.fingerprint(); }
  /// Before `reserve`: at most this many slices are in progress at once.
  void limit_window(size_t slices) { most_slices_ = slices; }

 private:
  using Step = DagWindow::Step;

  // What precedes it.

  static std::shared_ptr<CollectiveTask> make_prerequisite(std::shared_ptr<Group> group,
                                                           std::shared_ptr<Prerequisite> what,
                                                           std::chrono::milliseconds timeout);
  /// What the choice for the call needs to precede it.
  std::shared_ptr<CollectiveTask> plan_prerequisite();
  /// If it has a prerequisite, or could not have it: false until that is complete. Then it is
  /// absorbed.
  bool absorbs_prerequisite(Locked& locked);
  /// Of a prerequisite: false as long as this rank has not said what it has to say, and if nobody
  /// has anything to say.
  bool has_contributed(Locked& locked);
  /// What precedes it has failed, or a rank that it needs has left: it fails when it begins.
  bool is_hopeless() const;

  // Before the first slice.

  /// It has its Plan.
  void plan_known();
  /// How many slices may be in progress at once.
  size_t window() const;
  /// Gives out the job that takes the elements in or out, for its next step.
  void move(Locked& locked);
  /// The step that `move` has begun is complete.
  void moved(Locked& locked);
  /// Starts slices as far as the window goes, their input is there and staging is returned.
  void admit_slices(Locked& locked);

  // Slices.

  void run_ready(Locked& locked);
  void run(Locked& locked, Step step);
  void follow(Locked& locked, Step step, const OpOutcome& outcome);
  void launch(Locked& locked, OpJob& job);
  void accept(Locked& locked, OpJob& job);
  void complete(Locked& locked, Step step);

  // After the last slice, and after an error.

  void complete_last_slice(Locked& locked);
  /// All results are where they belong.
  void conclude(Locked& locked);
  /// It goes wrong: on all ranks, and for some calls with the whole group (Group::fail_call).
  void go_wrong(Locked& locked, const Error& error);

  const std::shared_ptr<void> keep_alive_;
  CallRun run_;
  std::shared_ptr<CollectiveTask> prerequisite_;    // until it is absorbed
  std::exception_ptr no_prerequisite_;              // why it could not be made
  std::shared_ptr<Prerequisite> purpose_;           // if this is a prerequisite: what it is for
  std::weak_ptr<const Task> call_of_prerequisite_;  // then: the call
  bool is_asked_ = false;                           // for its contribution
  std::unique_ptr<Job> preparation_;                // until its input or contribution is made
  bool lacks_rank_ = false;                         // it goes wrong because a rank has left
  size_t most_slices_ = SIZE_MAX;                   // in progress at once
  std::unique_ptr<ResidenceJob> moving_;            // as long as elements enter or leave
  bool is_moving_ = false;                          // that job has begun
  std::unique_ptr<InputSelection> selection_;       // until it has run
  bool is_selecting_ = false;
  // Of the lists below: a small call needs no other. Under the lock.
  std::array<std::byte, 4096> own_memory_;
  std::pmr::monotonic_buffer_resource memory_{own_memory_.data(), own_memory_.size()};
  DagWindow dag_{&memory_};
  BlockMap blocks_{run_, &memory_};
  OpWork ops_{*this, run_, blocks_, &memory_};
  MessagePorts ports_{*this, run_, blocks_, ops_};
  bool is_stalled_ = false;
  bool is_running_ready_ = false;
};

}  // namespace q7x2
