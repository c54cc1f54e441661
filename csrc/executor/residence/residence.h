// Residence: where the elements of a call are, and who runs jobs on them.
//
//   Host         in the caller's memory
//   Staged       on a device; strips pass through pinned host memory while the call runs
//   Selected     on a device, which selects what is sent; only that passes to the host
//   DeviceCoded  on a device, which encodes and decodes; only messages pass to the host
//   Direct       on a device; UCX moves blocks from device to device
//
// A call gets one of them at its launch (backend/choose_residence.cpp). The executor runs the same
// Plan in each. It asks how much of the input has arrived, where blocks and messages of a slice
// lie, and who runs a job. It says how much of the output is final.
//
// Elements may have to enter before the first slice, and to leave after the last one. Both happen
// in steps (executor/residence/residence_job.h): each step enqueues work on a stream of the device,
// and the next one begins when the stream has done that work. On the way in a residence may find
// that it cannot serve the call, because the Plan became known after the launch, or because of the
// elements themselves. Then it degrades: WholeStaging replaces it. That one serves every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/memory_kind.h"
#include "executor/call/block_coder.h"
#include "executor/call/collective_call.h"
#include "executor/call/device_worker.h"
#include "executor/call/op_job.h"
#include "executor/call/slicing.h"
#include "executor/residence/resident_device.h"
#include "plan/choose/planner.h"
#include "transport/run/scratch_pool.h"
#include "transport/task/input_latch.h"

namespace q7x2 {

class Residence {
 public:
  /// The call that runs, with its Plan. All of it outlives the residence.
  struct Run {
    CollectiveCall& call;
    const Choice& choice;
    const Slicing& slicing;
    BlockCoder* coder;  ///< null: the call is not coded

    /// The scratch blocks of one slice.
    size_t block_bytes() const { return choice.plan->num_scratch * choice.part_bytes; }
    /// The messages of one slice.
    size_t message_bytes() const {
      return coder == nullptr ? 0 : choice.plan->num_coded * coder->max_bytes();
    }
  };
  /// The memory of one slice in progress.
  struct Memory {
    std::byte* blocks = nullptr;
    std::byte* messages = nullptr;
    ScratchPool::Buffer pooled = {};  ///< to release after the last slice
  };
  enum class Way : uint8_t { kIn, kOut };
  /// What follows a step.
  enum class Next : uint8_t {
    kStep,     ///< another step, when the stream has done this one
    kStream,   ///< no other step; the way ends when the stream has done this one
    kNothing,  ///< no other step; the way ends at once
    kDegrade,  ///< the elements have not moved, and enter WholeStaging instead
  };

  explicit Residence(std::shared_ptr<InputLatch> inputs = {},
                     std::optional<ResidentDevice> device = {})
      : device_(std::move(device)), inputs_(std::move(inputs)) {}
  virtual ~Residence() = default;
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

  /// Empty: elements are in host memory.
  const std::optional<ResidentDevice>& device() const { return device_; }
  /// Null: all input is there from the start.
  const std::shared_ptr<InputLatch>& inputs() const { return inputs_; }
  /// Number of leading bytes of each input region that jobs may read.
  size_t arrived() const { return inputs_ ? inputs_->arrived() : SIZE_MAX; }
  bool has_arrived() const { return arrived() == SIZE_MAX; }
  /// The leading `bytes` of each output region are final.
  virtual void finish(size_t /*bytes*/) {}

  /// The memory of the elements of uncoded messages, for UCX.
  MemoryKind message_kind() const { return message_kind_; }
  /// Whether jobs may read and write the memory that ranks of this host share.
  bool uses_shared_memory() const { return uses_shared_memory_; }
  /// The memory of the slice at `place` in the window.
  virtual Memory memory(const Run& run, size_t place, ScratchPool& pool) const;
  /// Which device runs jobs of that kind; null: the host.
  DeviceWorker* worker(OpJob::Kind kind) const {
    return OpJob::is_coded(kind) ? coded_worker_ : block_worker_;
  }
  /// Whether the device has found results that are not finite, in jobs that are complete.
  virtual bool met_nonfinite() const { return false; }

  /// Called before the call is submitted, if its Plan is known then. In the caller's thread.
  virtual void prepare(const Run&) {}
  /// Whether elements take steps before the first slice, and after the last one.
  bool enters() const { return enters_; }
  bool leaves() const { return leaves_; }
  /// Take the next step. Called without the lock. Throw if the device refuses.
  virtual Next enter(const Run&) { return Next::kNothing; }
  virtual Next leave(const Run&) { return Next::kNothing; }
  /// The stream on which steps enqueue their work.
  virtual WorkStream& stream(Way way) const {
    return way == Way::kIn ? *device_->to_host : *device_->to_device;
  }
  /// Whether entering selects what is sent, so that the codec need not.
  bool selects() const { return selects_; }

 protected:
  const std::optional<ResidentDevice> device_;
  MemoryKind message_kind_ = MemoryKind::kHost;
  bool uses_shared_memory_ = true;
  bool enters_ = false;
  bool leaves_ = false;
  bool selects_ = false;
  DeviceWorker* block_worker_ = nullptr;
  DeviceWorker* coded_worker_ = nullptr;

 private:
  const std::shared_ptr<InputLatch> inputs_;
};

/// The elements are in host memory from the start.
class Host final : public Residence {
 public:
  /// It has no state, so all calls share one.
  static Host& of_process();
};

}  // namespace q7x2
