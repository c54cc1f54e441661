// TurnQueue: which collectives of a group run, and which wait for their turn.
//
// They are numbered in the order in which they are submitted, and begin in that order: a fixed
// number at most at once, each when it has the memory that it needs, and none that is too far ahead
// of the oldest one in progress. So all ranks number them alike, and no set of ranks can wait for
// each other in a circle: what the oldest one needs, it has. Point-to-point messages take no turn.
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
  /// Number of collectives in progress at once, at most.
  static constexpr size_t kMostRunning = 64;
  /// How far a collective that begins may be ahead of the oldest one in progress.
  static constexpr uint64_t kMostAhead = 256;

  static_assert(kMostAhead <= Unended().size());

  TurnQueue() { running_.reserve(kMostRunning); }
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  /// Gives `task` its number. True: its turn is now, and `begin` follows. False: it waits. If it
  /// throws what the task throws, the task keeps its number and never begins.
  bool submit(Locked& locked, const std::shared_ptr<Task>& task);
  /// Gives `task` its number only: it never begins here.
  void skip(Locked& locked, Task& task);
  /// `task` begins. Until `end` it is one of those that run.
  void begin(Locked& locked, Task& task);
  /// Takes the next one that waits, if its turn is now; `begin` follows. Null: none can begin.
  std::shared_ptr<Task> take_next(Locked& locked);
  /// `task` is done. False: it did not run.
  bool end(Locked& locked, Task& task);
  /// From now on none begins that is too far ahead of collective `number`.
  void stay_near(uint64_t number) { stays_near_ = number; }
  /// Forgets those that wait. They keep their numbers.
  void drop_waiting(Locked&);

  /// Number of collectives that have begun, which is the number of the next one to begin.
  uint64_t num_begun() const { return num_begun_; }
  /// Number of those that run. It includes those that are over but not done.
  size_t num_running() const { return running_.size(); }
  bool has_waiting() const { return !waiting_.empty(); }
  bool is_waiting(const Task& task) const;
  bool is_idle() const { return running_.empty() && waiting_.empty(); }

  /// Those that run and are not over, as a goodbye says it.
  Unended unended(Locked& locked) const;
  /// The oldest one that runs and is not over; null: there is none.
  Task* oldest(Locked& locked) const;
  /// Its number; without one, that of the next one to begin.
  uint64_t oldest_number(Locked& locked) const;
  /// The one with this number, unless it is over: one that runs, or one that runs or waits.
  Task* find_running(Locked& locked, uint64_t number) const;
  Task* find(Locked& locked, uint64_t number) const;

 private:
  /// Short calls may pass a long one, but not in any number: numbers in tags come again, and only
  /// the last calls are remembered.
  bool is_far_ahead(Locked& locked) const {
    return num_begun_ - std::min(oldest_number(locked), stays_near_) >= kMostAhead;
  }

  uint64_t num_begun_ = 0;
  uint64_t stays_near_ = ~uint64_t{0};
  std::vector<Task*> running_;  // by number
  std::deque<std::shared_ptr<Task>> waiting_;
};

}  // namespace q7x2
