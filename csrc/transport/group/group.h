// Group: the ranks of one process group, and what is in progress between them.
//
//   Membership     its ranks, and where they are
//   GroupLinks     connections to the other ranks
//   GroupMessages  messages of its tasks, over the network and through shared memory
//   TurnQueue      which collectives run, and which wait
//   CallAgreement  whether all ranks make the same calls, and which rank is late
//   Departure      which ranks have left
//   FailedCalls    which collectives have failed alone
//
// WireUp makes a group (transport/bootstrap/wire_up.h). The group is open until it fails or leaves.
// If it fails, every rank is told, and every later call gets the error that ended it. A single
// collective can fail without ending the group: docs/reliability.md says when.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/group/call_agreement.h"
#include "transport/group/departure.h"
#include "transport/group/failed_calls.h"
#include "transport/group/group_links.h"
#include "transport/group/group_messages.h"
#include "transport/group/membership.h"
#include "transport/group/turn_queue.h"
#include "transport/peer/control.h"
#include "transport/task/task.h"

namespace q7x2 {

class Runtime;

class Group : private CallAgreement::Environment {
 public:
  /// `lock`: the runtime's. `slot`: reserved in the group table, and owned by the group from now
  /// on. `begun`: when its ranks began to make it.
  Group(Runtime& runtime, ReactorLock& lock, int slot, Membership members, TimePoint begun);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Runtime& runtime() const { return runtime_; }
  const Membership& membership() const { return members_; }
  int rank() const { return members_.rank(); }
  int world_size() const { return members_.world_size(); }
  int slot() const { return slot_; }
  /// When this rank began to make the group.
  TimePoint begun() const { return begun_; }
  GroupLinks& links() { return links_; }
  const GroupMessages& messages() const { return messages_; }
  GroupMessages& messages() { return messages_; }
  CallAgreement& agreement() { return agreement_; }
  const Departure& departure() const { return departure_; }

  // Any thread; these take the reactor's lock.

  /// If this group fails, `other` fails too, because its calls belong to calls of this group.
  void accompany(const std::shared_ptr<Group>& other);
  /// Fails everything in progress and every later call with `error`, here and at all other ranks.
  void abort(const Error& error);
  /// Leaves in good order: what is still in progress here fails, and peers are told. Idempotent.
  /// See Runtime::finish_collectives.
  void leave();
  /// The error that ended the group, if there is one.
  std::optional<Error> error();
  /// Throws that error, if there is one.
  void check();

  /// While an object of this class exists, a thread waits for a task of the group and runs its
  /// jobs.
  class Waiting {
   public:
    explicit Waiting(Group& group) : group_(group) { ++group_.waiting_threads_; }
    ~Waiting() { --group_.waiting_threads_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Group& group_;
  };
  bool is_waited_for() const override {
    return waiting_threads_.load(std::memory_order_relaxed) > 0;
  }

  // For the transport.

  /// Whether it has neither failed nor left.
  bool is_usable(Locked&) const override { return !error_ && !closed_; }
  void submit(Locked& locked, const std::shared_ptr<Task>& task);
  /// A task that was submitted is done.
  void task_done(Locked& locked, Task& task);
  /// Ends the group here and tells the other ranks.
  void fail(Locked& locked, const Error& error) override;
  /// `task` fails with `error`, to which its name is added if it is missing. A collective that can
  /// fail alone fails on all ranks, and the group goes on. Otherwise the group fails.
  void fail_call(Locked& locked, Task& task, const Error& error);
  /// Tells the other ranks that this rank begins nothing more, but completes what it has begun.
  void say_last_call(Locked& locked);
  /// Handles a control message. The sender need not be a member.
  void handle(Locked& locked, const Control& control);
  /// Called now and then: checks whether the ranks disagree.
  void housekeep(Locked& locked, TimePoint now);
  /// Polls the shared memory. Returns true if anything happened.
  bool progress_shared(Locked& locked);

 private:
  void begin(Locked& locked, const std::shared_ptr<Task>& task);
  void start_waiting(Locked& locked);
  void fail_tasks(Locked& locked, const Error& error);
  void note_failed_call(Locked& locked, uint64_t number, const Error& error);
  void hear_failed_call(Locked& locked, const Control& control);
  void drop_failed_calls(Locked& locked);
  void resume(Locked& locked);
  void tell_all(Locked& locked, ControlType type, uint64_t begun, const Unended& unended = {});
  void peer_left(Locked& locked, const Control& goodbye);
  bool needs(Locked& locked, Task& task, int rank) const;

  const FailedCalls& failed_calls(Locked&) const override { return failed_calls_; }
  std::vector<std::shared_ptr<Task>> unfinished(Locked& locked) override;
  bool is_member(Locked& locked, int rank) const override { return links_.is_member(locked, rank); }
  bool connect(Locked& locked, int rank) override { return links_.connect(locked, rank); }
  Control control_to(int rank, ControlType type) const override {
    return links_.control_to(rank, type);
  }
  void send(Locked& locked, int rank, const Control& control) override {
    links_.send(locked, rank, control);
  }
  void find_unexpected(Locked& locked,
                       const std::function<bool(uint64_t tag, int sender)>& visit) override {
    messages_.find_unexpected(locked, visit);
  }
  std::string call_text(Locked& locked, uint64_t sequence) const override;
  std::string life_of(Locked& locked, int rank) const override;
  int awaited_elsewhere(Locked& locked) const override;

  Runtime& runtime_;
  ReactorLock& lock_;
  const int slot_;
  const Membership members_;
  const TimePoint begun_;
  Departure departure_;
  TurnQueue turns_;
  FailedCalls failed_calls_;
  GroupLinks links_;
  GroupMessages messages_;
  CallAgreement agreement_;
  std::weak_ptr<Group> companion_;
  std::optional<Error> error_;
  bool closed_ = false;
  std::atomic<int> waiting_threads_{0};
};

}  // namespace q7x2
