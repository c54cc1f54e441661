// Services: what the process does for its tasks and groups (TaskHost, GroupHost), by its tables.
#pragma once

#include "transport/group/group_host.h"
#include "transport/task/task_host.h"

namespace q7x2 {

class FlightLog;
class GroupTable;
class JobQueue;
class Notifier;
class Parking;
class TaskTable;

class Services final : public TaskHost, public GroupHost {
 public:
  /// All must outlive it.
  Services(TaskTable& tasks, GroupTable& groups, FlightLog& flights, JobQueue& jobs,
           Parking& parking, Notifier& notifier)
      : tasks_(tasks),
        groups_(groups),
        flights_(flights),
        jobs_(jobs),
        parking_(parking),
        notifier_(notifier) {}

  bool notify(std::function<void()>&& callback) override;
  void enqueue(Locked& locked, Task& task, Job& job, size_t bytes) override;
  void wake_waiters() override;
  void inputs_arrived(Locked& locked, Task& task) override;
  void failed(Locked& locked, Task& task) override;
  void finished(Locked& locked, Task& task) override;
  void ended(Locked& locked, Task& task) override;
  void retire(Locked& locked, Task& task) override;
  int source_of(const Task& task, uint64_t tag) const override;
  Lateness lateness(Locked& locked, Task& task) override;

  const std::vector<std::shared_ptr<Task>>& active_tasks(Locked& locked) const override;
  void drain(Locked& locked) override;
  void blame(Locked& locked, int slot, Peer& culprit) override;
  void close(Locked& locked, int slot, bool ended_late) override;
  void set_sharing(Locked& locked, int slot, bool is_needed) override;
  const Peer* awaited_peer(Locked& locked) const override;
  void admit(Locked& locked, Task& task, int slot) override;
  void submitted(Locked& locked, Task& task) override;
  void started(Locked& locked, Task& task) override;
  void failed(Locked& locked, int slot, const Error& error) override;
  std::string call_text(Locked& locked, int slot, uint64_t sequence) const override;

 private:
  TaskTable& tasks_;
  GroupTable& groups_;
  FlightLog& flights_;
  JobQueue& jobs_;
  Parking& parking_;
  Notifier& notifier_;
};

}  // namespace q7x2
