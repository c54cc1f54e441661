// CollectiveTask: one collective in progress. It runs a Plan over the caller's buffers.
//
// The data is cut into slices (executor/call/slicing.h). The Plan's DAG runs once per slice, for a
// bounded window of slices at a time (plan/ir/dag_window.h). This class runs the DAG: it decides in
// which order things happen. It has these parts:
//
//   CallRun        the call, the choice by which it runs, and where its elements are
//   BlockMap       where the blocks of the slices in progress are
//   OpWork         the jobs that do the work of ops on memory
//   MessagePorts   messages, and the check that all ranks make the same call
//   Prerequisite   the purpose of a collective that precedes a call
//
// Jobs run without the reactor's lock. Jobs of a few KiB run at once, with the lock held.
//
// A call with a prerequisite waits for its turn until the prerequisite is complete. Then the call
// has its Plan.
//
// The call's Residence knows where the elements are, and who runs jobs on them
// (executor/residence/residence.h). A slice begins when its input has arrived. Until then it waits
// only for this rank's device, so ranks never wait for each other in a circle. A place in the
// window is used again when all receivers have read what was staged for its slice.
//
// Before the first slice, the input may have to be prepared, the elements may have to enter their
// residence, and the codec may have to select what is sent. After the last slice, the elements may
// have to leave their residence.
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
  /// Makes the task of a user's call. There are many such tasks, so their memory is recycled.
  static std::shared_ptr<CollectiveTask> make(std::shared_ptr<Group> group, PlannedCall&& planned,
                                              std::shared_ptr<void> keep_alive,
                                              std::chrono::milliseconds timeout);
  /// Makes the collective for `what`. It must be submitted before `call`.
  static std::shared_ptr<CollectiveTask> before(const Task& call,
                                                std::shared_ptr<Prerequisite> what);

  /// The memory in the call must stay valid until `keep_alive` is dropped, which happens when the
  /// task is destroyed. If the codec balances parts, the constructor reads the whole input.
  CollectiveTask(std::shared_ptr<Group> group, PlannedCall&& planned,
                 std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout);

  /// Where the elements are. Called before the task is submitted, unless they are in host memory.
  void set_residence(std::unique_ptr<Residence> residence);
  /// `what` directly precedes the call. Called before the task is submitted; not allowed if its
  /// codec balances parts.
  void set_prerequisite(std::shared_ptr<Prerequisite> what);

  std::string name() const override;
  bool takes_turn() const override { return true; }
  bool can_fail_alone(bool waits) const override;
  bool is_recorded() const override { return true; }
  void describe(FlightRecord& record) const override;
  void report(FlightRecord& record, NameTable& names) const override;
  /// The algorithm of the Plan. Only after `done`.
  const std::string& algorithm() const { return run_.plan().algorithm; }

 protected:
  // Hooks of Task.

  /// Called once, when the task is submitted. Calls get their numbers here.
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

  /// A hash of all that the ranks must agree on.
  uint64_t fingerprint() const { return run_.fingerprint(); }
  /// Limits the number of slices in progress at once. Called before `reserve`.
  void limit_window(size_t slices) { most_slices_ = slices; }

 private:
  using Step = DagWindow::Step;

  // Prerequisites.

  static std::shared_ptr<CollectiveTask> make_prerequisite(std::shared_ptr<Group> group,
                                                           std::shared_ptr<Prerequisite> what,
                                                           std::chrono::milliseconds timeout);
  /// The prerequisites that the choice for the call needs, as a chain. Returns the last of them.
  std::shared_ptr<CollectiveTask> plan_prerequisite();
  /// Returns false until the prerequisite is complete, and then absorbs it. Throws if the
  /// prerequisite could not be made.
  bool absorbs_prerequisite(Locked& locked);
  /// Whether the prerequisite has failed, or a rank that the call needs has left. Such a call fails
  /// when it begins.
  bool is_hopeless() const;

  // Before the first slice: the phases of the call. Each begins when its input has arrived. If it
  // has a job, the next one begins when the job is complete.

  enum class Phase : uint8_t {
    kPreparation,   ///< the call makes its input from what its prerequisite has brought
    kContribution,  ///< a prerequisite writes what this rank contributes
    kEntry,         ///< the elements enter their residence
    kSelection,     ///< the codec selects what is sent
    kSlices,        ///< all slices; its job takes the elements out of their residence
  };

  void next_phase() { phase_ = static_cast<Phase>(static_cast<uint8_t>(phase_) + 1); }
  /// Whether the phase is complete at once. If not, it awaits its input or has begun its job.
  bool passes(Locked& locked);
  /// The same for the contribution of a prerequisite. If no rank has anything to contribute,
  /// finishes the task.
  bool contributes(Locked& locked);
  /// Enqueues the job of the phase. Returns false: the phase is not complete.
  bool begin_job(Locked& locked, Job& job, size_t bytes);
  /// Called when a step of the job of the phase is complete.
  void end_job(Locked& locked);
  /// Called when the call has its Plan.
  void plan_known();
  /// The largest number of slices in progress at once.
  size_t window() const;
  /// Starts slices as long as the window has room, their input has arrived, and staging was
  /// returned.
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
  /// Called when all results are in their place: finishes the call, or fails it if they are not
  /// finite.
  void conclude(Locked& locked);
  /// The call fails on all ranks. Some calls fail the whole group (Group::fail_call).
  void go_wrong(Locked& locked, const Error& error);

  const std::shared_ptr<void> keep_alive_;
  CallRun run_;
  std::shared_ptr<CollectiveTask> prerequisite_;  // until it is absorbed
  std::exception_ptr no_prerequisite_;            // why the prerequisite could not be made
  // The purpose, if this is a prerequisite; otherwise null.
  std::shared_ptr<Prerequisite> purpose_;
  // The call that it precedes, if this is a prerequisite.
  std::weak_ptr<const Task> call_of_prerequisite_;
  Phase phase_ = Phase::kPreparation;
  Job* phase_job_ = nullptr;                   // runs; null: the phase has not begun, or has no job
  std::unique_ptr<Job> preparation_;           // makes the input or the contribution
  std::unique_ptr<ResidenceJob> moving_;       // while elements enter or leave
  std::unique_ptr<InputSelection> selection_;  // until it has run
  bool lacks_rank_ = false;                    // it fails because a rank has left
  size_t most_slices_ = SIZE_MAX;              // limit of the slices in progress
  // The memory of the lists below. It suffices for a small call. Used under the lock.
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
