#include "transport/group/turn_queue.h"

#include <algorithm>

namespace q7x2 {

bool TurnQueue::submit(Locked& locked, const std::shared_ptr<Task>& task) {
  task->record(locked).sequence = num_begun_ + waiting_.size();
  if (waiting_.empty() && running_.size() < kMostRunning && !is_far_ahead(locked)) {
    try {
      if (task->reserve(locked)) return true;
    } catch (...) {
      ++num_begun_;  // other ranks count it too
      throw;
    }
  }
  task->record(locked).has_waited = true;
  waiting_.push_back(task);
  return false;
}

void TurnQueue::skip(Locked& locked, Task& task) {
  task.record(locked).sequence = num_begun_++;
}

void TurnQueue::begin(Locked& locked, Task& task) {
  Task::Record& record = task.record(locked);
  record.sequence = num_begun_++;
  record.is_started = true;  // from now on its end ends its turn
  running_.push_back(&task);
}

std::shared_ptr<Task> TurnQueue::take_next(Locked& locked) {
  while (!waiting_.empty() && running_.size() < kMostRunning && !is_far_ahead(locked)) {
    const std::shared_ptr<Task> next = waiting_.front();
    const bool is_over = next->is_over(locked);
    if (!is_over && !next->reserve(locked)) return nullptr;
    waiting_.pop_front();
    if (!is_over) return next;
    ++num_begun_;  // it keeps its number
  }
  return nullptr;
}

bool TurnQueue::end(Locked& locked, Task& task) {
  if (!task.record(locked).is_started) return false;
  const auto found = std::ranges::find(running_, &task);
  if (found == running_.end()) return false;
  running_.erase(found);
  return true;
}

void TurnQueue::drop_waiting(Locked&) {
  num_begun_ += waiting_.size();
  waiting_.clear();
}

bool TurnQueue::is_waiting(const Task& task) const {
  return std::ranges::any_of(waiting_, [&](const auto& each) { return each.get() == &task; });
}

Unended TurnQueue::unended(Locked& locked) const {
  Unended unended;
  for (Task* task : running_) {
    if (!task->is_over(locked)) unended.set(num_begun_ - 1 - task->record(locked).sequence);
  }
  return unended;
}

Task* TurnQueue::oldest(Locked& locked) const {
  const auto found =
      std::ranges::find_if(running_, [&](const Task* task) { return !task->is_over(locked); });
  return found == running_.end() ? nullptr : *found;
}

uint64_t TurnQueue::oldest_number(Locked& locked) const {
  Task* const task = oldest(locked);
  return task == nullptr ? num_begun_ : task->record(locked).sequence;
}

Task* TurnQueue::find_running(Locked& locked, uint64_t number) const {
  const auto found = std::ranges::find_if(running_, [&](Task* task) {
    return !task->is_over(locked) && task->record(locked).sequence == number;
  });
  return found == running_.end() ? nullptr : *found;
}

Task* TurnQueue::find(Locked& locked, uint64_t number) const {
  const uint64_t place = number - num_begun_;
  return number >= num_begun_ && place < waiting_.size() ? waiting_[place].get()
                                                         : find_running(locked, number);
}

}  // namespace q7x2
