// InputSelection: the job in which a codec selects what is sent. It reads the whole input before
// the first slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/collective/call_run.h"
#include "transport/task/job.h"

namespace q7x2 {

class InputSelection final : public Job {
 public:
  /// `run` must have a Plan and a coder, and must outlive it.
  explicit InputSelection(CallRun& run) : run_(run) {}

  /// Number of input bytes that it passes over.
  size_t bytes() const;
  /// Runs in the caller's thread instead of as a job: selects, and returns how many elements of
  /// each granule are sent (executor/collective/counted_cut.h).
  std::vector<int32_t> count();
  /// The time that this took, in nanoseconds.
  int64_t took() const { return took_; }

 private:
  void work() override;
  /// Reads elements of the input as fp32, with their residuals added. `chunk`: a buffer for one
  /// read.
  const float* read(std::vector<float>& chunk, size_t first, size_t wanted) const;

  CallRun& run_;
  int64_t took_ = 0;
};

}  // namespace q7x2
