#include "transport/run/services.h"

#include <utility>

#include "transport/group/group.h"
#include "transport/group/group_table.h"
#include "transport/run/flight_log.h"
#include "transport/run/job_queue.h"
#include "transport/run/notifier.h"
#include "transport/run/task_table.h"
#include "transport/task/parking.h"
#include "transport/ucx/tag.h"

namespace q7x2 {

// ------------------------------------------------------------------------------------- for tasks

bool Services::notify(std::function<void()>&& callback) {
  return notifier_.post(std::move(callback));
}

void Services::enqueue(Locked& locked, Task& task, Job& job, size_t bytes) {
  jobs_.add(locked, task, job, bytes);
}

void Services::wake_waiters() {
  parking_.wake_waiters();
}

void Services::inputs_arrived(Locked& locked, Task& task) {
  tasks_.inputs_arrived(locked, task);
}

void Services::failed(Locked& locked, Task& task) {
  flights_.failed(locked, task);
  tasks_.cancel(locked, task);
  jobs_.forget(locked, task);
  Group& group = task.group();
  group.messages().forget(locked, task, /*tells=*/group.is_usable(locked));
}

void Services::finished(Locked& locked, Task& task) {
  tasks_.finished(locked, task);
  flights_.finished(locked, task);
  parking_.wake_waiters();
}

void Services::ended(Locked& locked, Task& task) {
  task.group().task_done(locked, task);
}

void Services::retire(Locked& locked, Task& task) {
  tasks_.retire(locked, task);
}

int Services::source_of(const Task& task, uint64_t tag) const {
  return tag::source_of(tag, task.group().world_size());
}

TaskHost::Lateness Services::lateness(Locked& locked, Task& task) {
  return task.group().agreement().lateness(locked, task);
}

// ------------------------------------------------------------------------------------ for groups

const std::vector<std::shared_ptr<Task>>& Services::active_tasks(Locked& locked) const {
  return tasks_.active(locked);
}

void Services::drain(Locked& locked) {
  tasks_.drain(locked);
}

void Services::blame(Locked& locked, int slot, Peer& culprit) {
  groups_.failed(locked, slot, &culprit);
}

void Services::close(Locked& locked, int slot, bool ended_late) {
  flights_.close(locked, slot);
  groups_.close(locked, slot, ended_late);
}

void Services::set_sharing(Locked& locked, int slot, bool is_needed) {
  groups_.set_sharing(locked, slot, is_needed);
}

const Peer* Services::awaited_peer(Locked& locked) const {
  return groups_.awaited_peer(locked);
}

void Services::admit(Locked& locked, Task& task, int slot) {
  flights_.admit(locked, task, slot);
}

void Services::submitted(Locked& locked, Task& task) {
  flights_.submitted(locked, task);
}

void Services::started(Locked& locked, Task& task) {
  flights_.started(locked, task);
}

void Services::failed(Locked& locked, int slot, const Error& error) {
  flights_.failed(locked, slot, error);
}

std::string Services::call_text(Locked& locked, int slot, uint64_t sequence) const {
  return flights_.call_text(locked, slot, sequence);
}

}  // namespace q7x2
