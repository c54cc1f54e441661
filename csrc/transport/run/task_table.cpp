#include "transport/run/task_table.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "transport/group/group.h"
#include "transport/group/group_failure.h"
#include "transport/run/flight_log.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// How long the requests of a task that is over may take to end by themselves. A live peer whose
// group has failed too ends its requests within a round trip.
constexpr std::chrono::milliseconds kQuiet{30};

// If a collective has failed alone, peers end their part as soon as they are told. That can take as
// long as the call's timeout.
bool is_overdue(Locked& locked, Task& task, TimePoint now) {
  const Task::Record& record = task.record(locked);
  const bool failed_alone = task.takes_turn() && task.group().is_usable(locked);
  return now - kQuiet >= record.over_since && (!failed_alone || now >= record.deadline);
}

/// A receive from any rank that has failed over many connections had begun to get a message.
int peer_of(const PendingRequest& failed) {
  if (failed.peer >= 0 || failed.wire != Wire::kStream) return failed.peer;
  const int world_size = failed.task->group().world_size();
  const int source = tag::source_of(failed.tag, world_size);
  return source < world_size ? source : -1;
}

}  // namespace

void TaskTable::submit(Locked& locked, const std::shared_ptr<Task>& task) {
  task->set_submitted(locked, Clock::now());
  guarded(locked, *task, [&] {
    active_.push_back(task);
    task->record(locked).active_index = active_.size() - 1;
    ++unfinished_;
    task->group().submit(locked, task);
  });
}

// An exception in `step`, for example because there is no memory, fails the task on all ranks,
// because the others would wait for this rank's messages.
template <typename Step>
void TaskTable::guarded(Locked& locked, Task& task, const Step& step) {
  try {
    step();
  } catch (const std::exception& exception) {
    task.group().fail_call(locked, task, failure_of(task.group().membership(), exception));
  }
}

void TaskTable::drain(Locked& locked) {
  while (PendingRequest* const complete = reactor_.take_completed(locked)) {
    reactor_.win(locked, *complete);
    if (complete->in_inbox) complete->task->group().messages().forget_expected(locked, *complete);
    const PendingRequest pending = *complete;
    Task& task = *pending.task;
    reactor_.release(locked, *complete);
    if (task.is_over(locked)) {
      task.settle(locked);
      continue;
    }
    Task::Record& record = task.record(locked);
    record.has_moved = true;
    guarded(locked, task, [&] {
      if (pending.status == UCS_OK) {
        // What collectives receive through shared memory is not counted here.
        if (pending.is_receive) {
          (pending.wire == Wire::kMemory ? record.traffic.received_memory
                                         : record.traffic.received_network) += pending.length;
        }
        task.after_wait(locked, pending.peer, [&] {
          task.completed(locked, pending.token, pending.length, pending.tag);
        });
      } else if (pending.status == UCS_ERR_MESSAGE_TRUNCATED) {
        task.truncated(locked, pending.token, pending.tag);
      } else if (pending.status != UCS_ERR_CANCELED) {
        task.group().links().request_failed(locked, task, peer_of(pending), pending.wire,
                                            pending.status);
      }
    });
  }
}

void TaskTable::worked(Locked& locked, Task& task, Job& job) {
  --task.record(locked).jobs;
  task.record(locked).waits.restart(job.ended());
  if (task.is_over(locked)) {
    task.settle(locked);
    return;
  }
  guarded(locked, task, [&] { task.worked(locked, job); });
}

void TaskTable::inputs_arrived(Locked& locked, Task& task) {
  if (!task.is_over(locked)) {
    task.record(locked).waits.restart(Clock::now());
    guarded(locked, task, [&] { task.inputs_arrived(locked); });
  }
}

void TaskTable::expire_late(Locked& locked, TimePoint now) {
  std::vector<std::shared_ptr<Task>> late;
  std::vector<std::shared_ptr<Task>> held_up;
  for (const auto& task : active_) {
    Task::Record& record = task->record(locked);
    if (std::exchange(record.has_moved, false)) {
      flights_.progressed(locked, *task, now);
    }
    if (!task->is_over(locked) && now >= record.deadline) {
      late.push_back(task);
    } else if (!task->done() && task->is_over(locked) &&
               (is_overdue(locked, *task, now) ||
                (record.jobs == 0 && task->group().links().waits_for_the_dead(locked, *task)))) {
      held_up.push_back(task);
    }
  }
  for (const auto& task : late) {
    task->timed_out(locked);
  }
  for (const auto& task : held_up) {
    task->group().links().cut_off(locked, *task);
  }
}

bool TaskTable::is_held_up(Locked& locked) const {
  return std::ranges::any_of(
      active_, [&](const auto& task) { return task->is_over(locked) && !task->done(); });
}

void TaskTable::finished(Locked& locked, Task& task) {
  if (task.record(locked).active_index) {
    --unfinished_;
  }
}

void TaskTable::cancel(Locked& locked, Task& task) {
  // Cancelling a request completes it inside the call; the reactor collects it.
  for (PendingRequest* p = task.record(locked).requests.first(); p != nullptr; p = p->next) {
    if (p->is_receive && p->request != nullptr) {
      reactor_.cancel(locked, *p);
    }
  }
}

void TaskTable::retire(Locked& locked, Task& task) {
  Task::Record& record = task.record(locked);
  if (!record.active_index) {
    return;
  }
  const size_t index = *std::exchange(record.active_index, std::nullopt);
  locked.drop_later(std::move(active_[index]));
  if (index + 1 != active_.size()) {
    active_[index] = std::move(active_.back());
    active_[index]->record(locked).active_index = index;
  }
  active_.pop_back();
}

void TaskTable::clear(Locked& locked) {
  for (std::shared_ptr<Task>& task : active_) {
    locked.drop_later(std::move(task));
  }
  active_.clear();
}

}  // namespace q7x2
