#include "executor/residence/residence_job.h"

#include "executor/call/job_completion.h"
#include "executor/residence/whole_staging.h"
#include "transport/task/task.h"

namespace q7x2 {

using Next = Residence::Next;

bool ResidenceJob::begin() {
  Next next = Next::kStream;
  // The device's errors are known only when the work of the last step is done.
  try {
    next = step();
  } catch (...) {
    keep_error();
  }
  is_over_ = next != Next::kStep;
  if (next == Next::kNothing) return true;
  complete_after(residence_->stream(way_), *this, task_.shared_from_this());
  return false;
}

Next ResidenceJob::step() {
  if (way_ == Way::kOut) return residence_->leave(run_);
  const Next next = residence_->enter(run_);
  if (next != Next::kDegrade) return next;
  replacement_ = std::make_unique<WholeStaging>(residence_->inputs(), *residence_->device());
  residence_ = replacement_.get();
  return residence_->enter(run_);
}

}  // namespace q7x2
