// OpJob: what an op of a Plan does to memory, with all that it needs to know of its task. So it
// runs without a lock, in any thread (transport/run/job_queue.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory_resource>
#include <utility>
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
    kCopy,           ///< elements, or a message as it is
    kReduce,         ///< elements with elements
    kAddResidual,    ///< elements and their residual to elements
    kEncode,         ///< elements to a message
    kDecode,         ///< a message to elements
    kFold,           ///< elements and messages to elements
    kFoldToMessage,  ///< elements and messages to a message
    kInspect,        ///< looks for what is not finite
  };
  /// Whether jobs of that kind read or make messages of a codec.
  static bool is_coded(Kind kind) { return kind >= Kind::kEncode && kind <= Kind::kFoldToMessage; }
  /// What the job is part of.
  enum class Purpose : uint8_t {
    kOp,       ///< it is the op
    kStage,    ///< of a send: puts its block where ranks of this host read it
    kTake,     ///< of a receive: copies what has arrived
    kInspect,  ///< of a receive: looks at what has arrived
  };

  /// Of its lists, which are filled under the lock. It must stay.
  using Memory = std::pmr::memory_resource;

  explicit OpJob(Memory* memory) : from(memory), addends(memory) {}

  Kind kind = Kind::kCopy;
  Purpose purpose = Purpose::kOp;
  DagWindow::Step step;
  std::pmr::vector<BlockCoder::Operand> from;  ///< all kinds but kReduce
  std::pmr::vector<const void*> addends;       ///< kReduce
  std::byte* to = nullptr;
  std::byte* also_to = nullptr;  ///< kReduce: a second place for the result; null: none
  size_t length = 0;             ///< in bytes, of the elements; kCopy: of what is copied
  int divisor = 1;
  const CollectiveCall* call = nullptr;
  BlockCoder* coder = nullptr;
  DeviceWorker* worker = nullptr;  ///< does the work; null: elements are on the host
  Task* task = nullptr;            ///< `worker`: whose job it is
  BlockCoder::Place at;            ///< coded kinds
  bool inspects = false;           ///< looks at the elements that it has written
  /// kTake: the message, which is released afterwards.
  ShmChannel::Message message;

  /// What it has made: the length of a message.
  size_t made = 0;
  /// How long that took, by what was done. Zero if nobody looked at the clock.
  WorkTimes times() const;

 private:
  void work() override;
  bool begin() override;
  void reduce_tiles();

  TimePoint added_up_{};  // kFoldToMessage: when the sum was there
};

/// Jobs of one task, reused.
class OpJobs {
 public:
  explicit OpJobs(OpJob::Memory* memory) : all_(memory), free_(memory) {}

  /// As new, but for the memory of its lists.
  OpJob& take();
  void release(OpJob& job) { free_.push_back(&job); }

 private:
  std::pmr::list<OpJob> all_;
  std::pmr::vector<OpJob*> free_;
};

}  // namespace q7x2
