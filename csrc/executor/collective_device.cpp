// Where the elements of a compressed call are whose tensors are on a device: there, if the device
// can run the Plan, or else in host memory. A call that does not know its Plan yet decides as soon
// as it does, and its input is ready.
#include <memory>
#include <utility>

#include "executor/collective.h"
#include "executor/job_completion.h"

namespace q7x2 {

/// Takes pinned memory, which may take long and wait for streams, and copies if there is no other
/// way. So it runs without the lock.
class CollectiveTask::PassageJob final : public Job {
 public:
  enum class Way : uint8_t { kIn, kOut };
  PassageJob(CollectiveTask& task, Way way) : task_(task), way_(way) {}

 private:
  void work() override {}
  bool begin() override {
    const bool comes_in = way_ == Way::kIn;
    if (comes_in && task_.codes_on_device()) {
      task_.make_device_coder();
      return true;
    }
    const CodingDevice& device = *task_.coding_device_;
    if (comes_in) task_.late_staging_ = std::make_unique<LateStaging>(device, task_.call_);
    // What a device refuses is known when what it has begun is done.
    try {
      if (comes_in) {
        task_.late_staging_->read();
      } else {
        task_.late_staging_->write();
      }
    } catch (...) {
      keep_error();
    }
    complete_after(comes_in ? *device.to_host : *device.to_device, *this, task_.shared_from_this());
    return false;
  }

  CollectiveTask& task_;
  const Way way_;
};

void CollectiveTask::set_device(std::shared_ptr<InputLatch> inputs,
                                std::shared_ptr<OutputGate> outputs) {
  device_inputs_ = inputs;
  device_outputs_ = std::move(outputs);
  set_inputs(std::move(inputs));
}

void CollectiveTask::set_device(std::shared_ptr<InputLatch> inputs, CodingDevice device) {
  coding_device_ = std::make_unique<CodingDevice>(std::move(device));
  if (choice_.plan && codes_on_device()) {
    make_device_coder();
  } else {
    passage_ = std::make_unique<PassageJob>(*this, PassageJob::Way::kIn);
  }
  set_device(std::move(inputs), std::shared_ptr<OutputGate>());
}

bool CollectiveTask::codes_on_device() const {
  return runs_on_device(*choice_.plan, *call_.coding.codec, call_.dtype,
                        !call_.coding.errors.empty());
}

void CollectiveTask::make_device_coder() {
  const size_t messages =
      static_cast<size_t>(choice_.window) * choice_.plan->num_coded * coder_->max_bytes();
  device_coder_ =
      std::make_unique<DeviceCoder>(*coding_device_, call_.coding, call_.dtype, messages);
}

bool CollectiveTask::has_come_in(Locked& locked) {
  if (!passage_) return true;
  if (!is_passing_ && device_inputs_->is_open()) {
    is_passing_ = true;
    enqueue(locked, *passage_, slicing_.bytes());
  }
  return false;
}

void CollectiveTask::leave(Locked& locked) {
  passage_ = std::make_unique<PassageJob>(*this, PassageJob::Way::kOut);
  enqueue(locked, *passage_, slicing_.bytes());
}

void CollectiveTask::passed(Locked& locked) {
  passage_->check();
  passage_.reset();
  if (dag_.done()) {
    conclude(locked);
    return;
  }
  if (late_staging_) late_staging_->redirect(call_);
  inputs_arrived(locked);
}

}  // namespace q7x2
