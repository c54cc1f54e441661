#include "executor/call/op_job.h"

#include <algorithm>

#include "executor/call/device_worker.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/reduce.h"
#include "transport/task/task.h"

namespace q7x2 {
namespace {

// Bytes that are reduced at a time. A multiple of the size of every element; with a few operands a
// tile stays in the L1 cache.
constexpr size_t kTile = 4096;

}  // namespace

void OpJob::work() {
  const size_t count = length / element_size(call->dtype);
  switch (kind) {
    case Kind::kCopy:
      copy_bytes(to, from[0].elements, length);
      break;
    case Kind::kReduce:
      reduce_tiles();
      break;
    case Kind::kAddResidual:
      coder->add_residual(at, count, from[0].elements, to);
      break;
    case Kind::kEncode:
      made = coder->encode(from[0], count, at, to);
      break;
    case Kind::kDecode:
      coder->decode(from[0].message, count, at, to);
      break;
    case Kind::kFold:
      coder->fold(from, count, at, divisor, to);
      break;
    case Kind::kFoldToMessage:
      made =
          coder->fold_to_message(from, count, at, divisor, to, is_timed() ? &added_up_ : nullptr);
      break;
    case Kind::kInspect:
      break;
  }
  if (inspects) coder->inspect(to, count);
}

// An error of the device is kept until the work that it has begun is complete, because only then
// nothing touches the memory any more.
bool OpJob::begin() {
  if (worker == nullptr) return Job::begin();
  const size_t count = length / element_size(call->dtype);
  worker->check(*this, count);
  try {
    made = worker->enqueue(*this, count);
  } catch (...) {
    keep_error();
  }
  worker->complete_later(*this, task->shared_from_this());
  return false;
}

WorkTimes OpJob::times() const {
  const auto between = [](TimePoint begin, TimePoint end) -> int64_t {
    return std::chrono::nanoseconds(end - begin).count();
  };
  const int64_t took = between(began(), ended());
  switch (kind) {
    case Kind::kCopy:
    case Kind::kAddResidual:
      return {.copy = took};
    case Kind::kReduce:
      return {.reduce = took};
    case Kind::kEncode:
      return {.encode = took};
    case Kind::kDecode:
    case Kind::kFold:
    case Kind::kInspect:
      return {.decode = took};
    case Kind::kFoldToMessage:
      if (took == 0) return {};
      if (worker != nullptr) return {.decode = took};
      return {.encode = between(added_up_, ended()), .decode = between(began(), added_up_)};
  }
  return {};
}

// A result that other ranks read is copied to shared memory tile by tile, while each tile is still
// in the nearest cache.
void OpJob::reduce_tiles() {
  const size_t element = element_size(call->dtype);
  const size_t longest = also_to != nullptr ? kTile : length;
  for (size_t begin = 0; begin < length; begin += longest) {
    const size_t tile = std::min(longest, length - begin);
    reduce(to + begin, addends, tile / element, call->dtype, call->reduce, divisor);
    if (also_to != nullptr) copy_bytes(also_to + begin, to + begin, tile);
    for (const void*& addend : addends) {
      addend = static_cast<const std::byte*>(addend) + tile;
    }
  }
}

OpJob& OpJobs::take() {
  if (free_.empty()) {
    OpJob& added = all_.emplace_back(all_.get_allocator().resource());
    free_.reserve(all_.size());
    return added;
  }
  OpJob& job = *free_.back();
  free_.pop_back();
  job.purpose = OpJob::Purpose::kOp;
  job.from.clear();
  job.addends.clear();
  job.also_to = nullptr;
  job.worker = nullptr;
  job.divisor = 1;
  job.at = {};
  job.inspects = false;
  return job;
}

}  // namespace q7x2
