// Where the elements of a call are whose tensors are on a device, if that is not known before it
// begins.
//
// Those of a direct call stay there. Those of a compressed one do if the device can run the Plan;
// or else they are in host memory, of a selection those that are sent. A call that does not know
// its Plan yet decides as soon as it does, and its input is ready.
#include <memory>
#include <utility>

#include "executor/collective/collective.h"
#include "executor/collective/job_completion.h"
#include "executor/residence/sparse_staging.h"
#include "executor/residence/whole_staging.h"

namespace q7x2 {

/// One step of the passage. Takes pinned memory, which may take long and wait for streams, so it
/// runs without the lock.
class CollectiveTask::PassageJob final : public Job {
 public:
  enum class Way : uint8_t { kIn, kOut };
  PassageJob(CollectiveTask& task, Way way) : task_(task), way_(way) {}

 private:
  void work() override {}
  bool begin() override {
    const bool comes_in = way_ == Way::kIn;
    if (task_.call_.is_direct) {
      task_.make_direct_device();
      task_.has_passed_ = true;
      // What the device still does to the memory that the call got is done before UCX uses it.
      complete_after(*task_.resident_device_->to_device, *this, task_.shared_from_this());
      return false;
    }
    if (comes_in && task_.codes_on_device()) {
      task_.make_device_coder();
      task_.has_passed_ = true;
      return true;
    }
    const ResidentDevice& device = *task_.resident_device_;
    if (!task_.through_host_) task_.through_host_ = task_.host_passage();
    // What a device refuses is known when what it has begun is done.
    try {
      task_.has_passed_ = !(comes_in ? task_.through_host_->read() : task_.through_host_->write());
      if (task_.has_passed_) return true;
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

void CollectiveTask::set_device(std::shared_ptr<InputLatch> inputs, ResidentDevice device) {
  resident_device_ = std::make_unique<ResidentDevice>(std::move(device));
  if (!call_.is_direct && choice_.plan && codes_on_device()) {
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
      std::make_unique<DeviceCoder>(*resident_device_, call_.coding, call_.dtype, messages);
}

void CollectiveTask::make_direct_device() {
  direct_ = std::make_unique<DirectDevice>(
      *resident_device_, call_.dtype,
      dag_.window() * choice_.plan->num_scratch * choice_.part_bytes);
}

std::unique_ptr<HostPassage> CollectiveTask::host_passage() {
  const ResidentDevice& device = *resident_device_;
  if (!selects_on_device(*choice_.plan, *call_.coding.codec, call_.dtype) ||
      !SparseStaging::takes(call_)) {
    return std::make_unique<WholeStaging>(device, call_);
  }
  return std::make_unique<SparseStaging>(
      device, call_, [this](const GatheredElements& gathered) { return sends_only(gathered); });
}

bool CollectiveTask::sends_only(const GatheredElements& gathered) const {
  const size_t total = region_begins_.back();
  for (const Op& op : choice_.plan->ops) {
    if (std::ranges::none_of(choice_.plan->sources_of(op),
                             [](const Block& block) { return block.space == Space::kInput; })) {
      continue;
    }
    for (size_t slice = 0; slice < slicing_.num_slices(); ++slice) {
      const size_t count = slicing_.part(op.length_of, slice).bytes / element_size(call_.dtype);
      const size_t first = coding_place(op, slice).first;
      if (count > 0 && !call_.coding.codec->sends_gathered_only(gathered, first, count, total)) {
        return false;
      }
    }
  }
  return true;
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
  has_passed_ = false;
  enqueue(locked, *passage_, slicing_.bytes());
}

void CollectiveTask::passed(Locked& locked) {
  passage_->check();
  if (!has_passed_) {
    enqueue(locked, *passage_, slicing_.bytes());
    return;
  }
  passage_.reset();
  if (dag_.done()) {
    conclude(locked);
    return;
  }
  if (through_host_) {
    if (auto gathered = through_host_->redirect(call_)) {
      coder_->take({.gathered = std::move(gathered)});
      selection_.reset();
    }
  }
  inputs_arrived(locked);
}

}  // namespace q7x2
