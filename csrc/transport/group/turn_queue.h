// TurnQueue: which collectives of a group run, and which wait for their turn.
//
// Collectives are numbered in the order in which they are submitted, and begin in that order: at
// most a fixed number at once, each when it has the memory that it needs, and none that is too far
// ahead of the oldest one in progress. So all ranks use the same numbers, and ranks cannot wait for
// each other in a circle, because the oldest collective has everything that it needs.
// Point-to-point messages take no turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/peer/control.h"
#include "transport/task/task.h"

namespace q7x2 {

class TurnQueue {
 public:
  /// Maximum number of collectives in progress at once.
  static constexpr size_t kMostRunning = 64;
  /// Maximum distance of a collective that begins from the oldest one in progress.
  static constexpr uint64_t kMostAhead = 256;

  static_assert(kMostAhead <= Unended().size());

  TurnQueue() { running_.reserve(kMostRunning); }
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  /// Gives `task` its number. Returns true if its turn is now; the caller then calls `begin`.
  /// Returns false if it waits. If the task throws, it keeps its number and never begins.
  bool submit(Locked& locked, const std::shared_ptr<Task>& task);
  /// Only gives `task` its number: it never begins here.
  void skip(Locked& locked, Task& task);
  /// `task` begins. It counts as running until `end`.
  void begin(Locked& locked, Task& task);
  /// Removes and returns the next waiting task if its turn is now; the caller then calls `begin`.
  /// Null: none can begin.
  std::shared_ptr<Task> take_next(Locked& locked);
  /// `task` is done. Returns false if it was not running.
  bool end(Locked& locked, Task& task);
  /// From now on no collective begins that is too far ahead of collective `number`.
  void stay_near(uint64_t number) { stays_near_ = number; }
  /// Removes the waiting tasks. They keep their numbers.
  void drop_waiting(Locked&);

  /// Number of collectives that have begun, which is the number of the next one to begin.
  uint64_t num_begun() const { return num_begun_; }
  /// Number of running collectives, including those that are over but not done.
  size_t num_running() const { return running_.size(); }
  bool has_waiting() const { return !waiting_.empty(); }
  bool is_waiting(const Task& task) const;
  bool is_idle() const { return running_.empty() && waiting_.empty(); }

  /// The collectives that run and are not over, in the form that a goodbye carries.
  Unended unended(Locked& locked) const;
  /// The oldest collective that runs and is not over; null if there is none.
  Task* oldest(Locked& locked) const;
  /// Its number; if there is none, the number of the next collective to begin.
  uint64_t oldest_number(Locked& locked) const;
  /// The collective with this number, unless it is over: a running one, or a running or waiting
  /// one.
  Task* find_running(Locked& locked, uint64_t number) const;
  Task* find(Locked& locked, uint64_t number) const;

 private:
  /// Short calls may overtake a long one, but only by a limited number, because the numbers in tags
  /// repeat and only the last calls are remembered.
  bool is_far_ahead(Locked& locked) const {
    return num_begun_ - std::min(oldest_number(locked), stays_near_) >= kMostAhead;
  }

  uint64_t num_begun_ = 0;
  uint64_t stays_near_ = ~uint64_t{0};
  std::vector<Task*> running_;  // by number
  std::deque<std::shared_ptr<Task>> waiting_;
};

}  // namespace q7x2
