#include "executor/residence/direct.h"

#include <algorithm>
#include <utility>

#include "executor/call/job_completion.h"
#include "executor/call/op_job.h"
#include "executor/residence/device_elements.h"

namespace q7x2 {

bool adds_directly(DType dtype, ReduceKind kind) {
  return is_of_devices(dtype) && kind == ReduceKind::kSum;
}

Direct::Direct(std::shared_ptr<InputLatch> inputs, ResidentDevice device)
    : Residence(std::move(inputs), std::move(device)) {
  message_kind_ = MemoryKind::kCuda;
  enters_ = true;
  block_worker_ = this;
}

Residence::Memory Direct::memory(const Run& run, size_t place, ScratchPool&) const {
  return {.blocks = scratch_.get() + place * run.block_bytes()};
}

Residence::Next Direct::enter(const Run& run) {
  const size_t bytes = static_cast<size_t>(run.choice.window) * run.block_bytes();
  if (bytes > 0) stream(Way::kIn).with([&] { scratch_ = stream(Way::kIn).scratch(bytes); });
  ++device_->traffic->direct.calls;
  return Next::kStream;
}

size_t Direct::enqueue(const OpJob& job, size_t count) {
  WorkStream& stream = *device_->to_device;
  stream.with([&] {
    if (job.kind == OpJob::Kind::kCopy) {
      stream.copy(job.to, job.from[0].elements, job.length, WorkStream::Way::kOnDevice);
    } else {
      add_up(job, count, stream);
    }
  });
  return 0;
}

// More contributions than a kernel supports are added in several passes. Each pass begins with the
// sum so far.
void Direct::add_up(const OpJob& job, size_t count, WorkStream& stream) const {
  const DeviceElements elements(*device_->kernels, job.call->dtype);
  const bool is_one_pass = job.addends.size() <= kMostFolded;
  const bool needs_sum = !elements.is_wide() || !is_one_pass;
  const size_t piece = DevicePieces::rounded(count * sizeof(float));
  const size_t widened = elements.is_wide() ? 0 : std::min<size_t>(job.addends.size(), kMostFolded);
  const std::shared_ptr<std::byte> memory =
      needs_sum ? stream.scratch((widened + 1) * piece) : nullptr;
  float* const sum = reinterpret_cast<float*>(needs_sum ? memory.get() : job.to);
  std::byte* const rest = needs_sum ? memory.get() + piece : nullptr;
  for (size_t next = 0; next < job.addends.size();) {
    DevicePieces pieces(rest);
    Fold fold;
    if (next > 0) fold.of[fold.num++] = {.values = sum};
    while (fold.num < kMostFolded && next < job.addends.size()) {
      float* const floats = elements.is_wide() ? nullptr : pieces.take_floats(count);
      fold.of[fold.num++] = {.values =
                                 elements.read(static_cast<const std::byte*>(job.addends[next++]),
                                               count, stream.handle(), floats)};
    }
    if (next == job.addends.size()) fold.divisor = static_cast<float>(job.divisor);
    float* const to =
        next == job.addends.size() && elements.is_wide() ? reinterpret_cast<float*>(job.to) : sum;
    device_->kernels->fold({}, fold, {.count = count}, {.values = to}, stream.handle());
  }
  if (!elements.is_wide()) elements.write(sum, count, job.to, stream.handle());
}

void Direct::complete_later(OpJob& job, const std::shared_ptr<Task>& task) {
  complete_after(*device_->to_device, job, task);
}

}  // namespace q7x2
