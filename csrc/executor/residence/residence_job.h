// ResidenceJob: takes the elements of a call into its residence, or out of it, step by step.
//
// A step may allocate pinned memory, which takes long and may wait for streams. So it runs as a
// job, without the lock. The same job is used again for each step.
#pragma once

#include <memory>
#include <utility>

#include "executor/residence/residence.h"
#include "transport/task/job.h"

namespace q7x2 {

class Task;

class ResidenceJob final : public Job {
 public:
  using Way = Residence::Way;

  /// `residence`, `task`, and what `run` refers to must outlive the job.
  ResidenceJob(Residence& residence, Residence::Run run, Way way, Task& task)
      : residence_(&residence), run_(run), way_(way), task_(task) {}

  // Only when the job is complete.

  /// Whether no step is left.
  bool is_over() const { return is_over_; }
  /// The residence that the elements have entered instead; null: the original one.
  std::unique_ptr<Residence> take_replacement() { return std::move(replacement_); }

 private:
  void work() override {}
  bool begin() override;
  Residence::Next step();

  Residence* residence_;
  const Residence::Run run_;
  const Way way_;
  Task& task_;
  bool is_over_ = false;
  std::unique_ptr<Residence> replacement_;  // after it has degraded
};

}  // namespace q7x2
