// OpJob: the work on memory of one op of a Plan. It contains all that it needs to know of its task,
// so it runs without the reactor's lock, in any thread (transport/run/job_queue.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory_resource>
#include <vector>

#include "executor/call/block_coder.h"
#include "executor/call/collective_call.h"
#include "ledger/work_times.h"
#include "plan/ir/dag_window.h"
#include "transport/shm/shm_channel.h"
#include "transport/task/job.h"

namespace q7x2 {

class DeviceWorker;

class OpJob final : public Job {
 public:
  enum class Kind : uint8_t {
    kCopy,           ///< copies elements, or a message unchanged
    kReduce,         ///< reduces elements
    kAddResidual,    ///< adds the residual to elements
    kEncode,         ///< elements -> message
    kDecode,         ///< message -> elements
    kFold,           ///< sum of elements and messages -> elements
    kFoldToMessage,  ///< sum of elements and messages -> message
    kInspect,        ///< looks for infinities and NaNs
  };
  /// Whether jobs of this kind read or write messages of a codec.
  static bool is_coded(Kind kind) { return kind >= Kind::kEncode && kind <= Kind::kFoldToMessage; }
  /// The part of an op that the job does.
  enum class Purpose : uint8_t {
    kOp,       ///< the whole op: a copy or a reduction
    kStage,    ///< part of a send: copies its block to where ranks of this host read it
    kTake,     ///< part of a receive: copies the message that has arrived
    kInspect,  ///< part of a receive: inspects the elements that have arrived
  };

  /// The memory of its lists, which are filled under the lock. It must outlive the job.
  using Memory = std::pmr::memory_resource;

  explicit OpJob(Memory* memory) : from(memory), addends(memory) {}

  Kind kind = Kind::kCopy;
  Purpose purpose = Purpose::kOp;
  DagWindow::Step step;
  std::pmr::vector<BlockCoder::Operand> from;  ///< all kinds except kReduce
  std::pmr::vector<const void*> addends;       ///< kReduce
  std::byte* to = nullptr;
  std::byte* also_to = nullptr;  ///< kReduce: a second destination of the result; null: none
  size_t length = 0;             ///< in bytes, of the elements; kCopy: bytes to copy
  int divisor = 1;
  const CollectiveCall* call = nullptr;
  BlockCoder* coder = nullptr;
  /// Does the work on a device; null: the elements are on the host.
  DeviceWorker* worker = nullptr;
  Task* task = nullptr;   ///< for `worker`: the task that the job belongs to
  BlockCoder::Place at;   ///< coded kinds
  bool inspects = false;  ///< looks for infinities and NaNs in what it has written
  /// kTake: the message, which is released afterwards.
  ShmChannel::Message message;

  /// The length of the message that the job has made, in bytes.
  size_t made = 0;
  /// The time that the job took, by kind of work. Zero if the job was not timed.
  WorkTimes times() const;

 private:
  void work() override;
  bool begin() override;
  void reduce_tiles();

  TimePoint added_up_{};  // kFoldToMessage: when the sum was complete
};

/// The jobs of one task. Released jobs are reused.
class OpJobs {
 public:
  explicit OpJobs(OpJob::Memory* memory) : all_(memory), free_(memory) {}

  /// Returns a job as new, except that its lists keep their memory.
  OpJob& take();
  void release(OpJob& job) { free_.push_back(&job); }

 private:
  std::pmr::list<OpJob> all_;
  std::pmr::vector<OpJob*> free_;
};

}  // namespace q7x2
