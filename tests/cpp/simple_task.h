// A task without a group, for tests of code that runs tasks.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/task/task.h"

namespace q7x2::test {

class SimpleTask : public Task {
 public:
  explicit SimpleTask(std::string name = "call",
                      std::chrono::milliseconds timeout = std::chrono::milliseconds(0))
      : Task(nullptr, timeout), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  bool takes_turn() const override { return true; }
  bool reserve(Locked&) override { return has_memory; }
  void start(Locked&) override {}
  void completed(Locked&, uint32_t, size_t, uint64_t) override {}

  /// It is over, but not done, because a task that is done reports to its group, and it has none.
  void end(Locked& locked) {
    record(locked).jobs = 1;
    finish(locked);
  }
  /// It waits for a message of `rank`.
  void await(Locked& locked, int rank) {
    PendingRequest& pending = requests_.emplace_back();
    pending.task = this;
    pending.peer = rank;
    pending.is_receive = true;
    record(locked).requests.add(pending);
  }

  bool has_memory = true;

 private:
  const std::string name_;
  std::list<PendingRequest> requests_;
};

}  // namespace q7x2::test
