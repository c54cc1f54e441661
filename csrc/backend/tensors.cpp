#include "backend/tensors.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include "backend/element_type.h"
#include "backend/plain_tensors.h"
#include "backend/supported_device.h"

namespace q7x2 {
namespace {

// A contiguous host tensor of the same shape. It is pinned if `tensor` is on a device.
at::Tensor on_host(const at::Tensor& tensor) {
  const bool is_pinned = !tensor.device().is_cpu();
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(is_pinned));
}

}  // namespace

DType reducible_dtype(const at::Tensor& tensor) {
  const DType dtype = dtype_of(tensor);
  TORCH_CHECK(dtype != DType::kBytes, "q7x2: invalid tensor type: cannot reduce ",
              tensor.scalar_type(), "; expected an integer, bool, floating point or complex type");
  return dtype;
}

Reduction::Reduction(const c10d::ReduceOp& op, int world_size) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return;
    case c10d::ReduceOp::AVG:
      divisor = world_size;
      return;
    case c10d::ReduceOp::PRODUCT:
      kind = ReduceKind::kProduct;
      return;
    case c10d::ReduceOp::MIN:
      kind = ReduceKind::kMin;
      return;
    case c10d::ReduceOp::MAX:
      kind = ReduceKind::kMax;
      return;
    case c10d::ReduceOp::BAND:
      kind = ReduceKind::kBitAnd;
      return;
    case c10d::ReduceOp::BOR:
      kind = ReduceKind::kBitOr;
      return;
    case c10d::ReduceOp::BXOR:
      kind = ReduceKind::kBitXor;
      return;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement =
          dynamic_cast<const compat::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK(supplement != nullptr,
                  "q7x2: ReduceOp.PREMUL_SUM needs a factor; make it with "
                  "torch.distributed._make_nccl_premul_sum");
      if (supplement->tensor_factor.defined()) {
        tensor_factor = supplement->tensor_factor;
      } else {
        factor = supplement->double_factor;
      }
      return;
    }
    case c10d::ReduceOp::UNUSED:
      break;
  }
  TORCH_CHECK(false,
              "q7x2: unknown reduction; expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, "
              "BXOR or PREMUL_SUM");
}

at::Tensor Reduction::premultiply(const at::Tensor& contribution) const {
  const c10::AutoGradMode no_grad(false);
  return factor ? contribution * *factor : contribution * tensor_factor->to(contribution.options());
}

bool CallBuffers::is_on_device(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return false;
  check_device(tensor.device());
  TORCH_CHECK(!device_ || *device_ == tensor.device(),
              "q7x2: the tensors of one call must be on one device, got ", *device_, " and ",
              tensor.device());
  device_ = tensor.device();
  return true;
}

bool CallBuffers::is_usable_in_place(const at::Tensor& tensor) {
  return is_plain(tensor) &&
         (tensor.device().is_cpu() || (stays_on_device_ && is_on_device(tensor)));
}

Region CallBuffers::keep(at::Tensor host) {
  const Region region{static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()};
  kept_.push_back(std::move(host));
  return region;
}

Region CallBuffers::input(const at::Tensor& tensor) {
  check_storage(tensor);
  return is_usable_in_place(tensor) ? keep(tensor) : private_copy(tensor);
}

Region CallBuffers::output(const at::Tensor& tensor) {
  check_storage(tensor);
  if (is_usable_in_place(tensor)) {
    return keep(tensor);
  }
  at::Tensor host = on_host(tensor);
  if (is_on_device(tensor)) {
    pinned_.add(tensor, host, /*is_read=*/false, /*is_written=*/true);
  } else {
    copies_.emplace_back(host, tensor);
  }
  return keep(std::move(host));
}

Region CallBuffers::in_place(const at::Tensor& tensor) {
  check_storage(tensor);
  const bool taken = std::any_of(kept_.begin(), kept_.end(), [&](const at::Tensor& other) {
    return other.const_data_ptr() == tensor.const_data_ptr();
  });
  if (is_usable_in_place(tensor) && !taken) {
    return keep(tensor);
  }
  if (is_on_device(tensor)) {
    at::Tensor host = on_host(tensor);
    pinned_.add(tensor, host, /*is_read=*/true, /*is_written=*/true);
    return keep(std::move(host));
  }
  const Region region = private_copy(tensor);
  copies_.emplace_back(kept_.back(), tensor);
  return region;
}

Region CallBuffers::private_copy(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor host = on_host(tensor);
  if (is_on_device(tensor)) {
    pinned_.add(tensor, host, /*is_read=*/true, /*is_written=*/false);
  } else {
    host.copy_(tensor.detach());
  }
  return keep(std::move(host));
}

Region CallBuffers::private_copy(Region region) {
  at::Tensor host = at::empty({static_cast<int64_t>(region.bytes)}, at::kByte);
  if (region.bytes > 0) std::memcpy(host.mutable_data_ptr(), region.data, region.bytes);
  return keep(std::move(host));
}

void CallBuffers::also_copy(const at::Tensor& source, const at::Tensor& destination) {
  if (is_on_device(destination) && !source.device().is_cpu()) {
    on_device_.push_back({source, destination});
  } else {
    copies_.emplace_back(source, destination);
  }
}

void CallBuffers::then(std::function<void()> last, at::Device device) {
  if (!device.is_cpu()) device_ = device;
  last_ = std::move(last);
}

std::vector<std::shared_ptr<InputLatch>> CallBuffers::read(
    const DeviceLanes::Lane& lane, const std::vector<TaskMemory>& tasks,
    const std::shared_ptr<CompletionQueue>& queue) {
  stream_ = std::make_unique<DeviceStream>(lane);
  tasks_ = tasks;
  std::vector<std::shared_ptr<InputLatch>> latches;
  std::vector<std::pair<DeviceStream::Passage, std::shared_ptr<InputLatch>>> passages;
  for (const TaskMemory& task : tasks_) {
    DeviceStream::Passage passage = pinned_.reads_of(task);
    if (task.on_device) passage.copies.resize(1);
    latches.push_back(passage.copies.empty() ? nullptr : std::make_shared<InputLatch>(queue));
    passages.emplace_back(std::move(passage), latches.back());
  }
  stream_->read(passages);
  return latches;
}

std::vector<std::shared_ptr<OutputGate>> CallBuffers::write() {
  std::vector<DeviceStream::Passage> passages;
  for (const TaskMemory& task : tasks_) passages.push_back(pinned_.writes_of(task));
  auto gates = stream_->write(passages, on_device_, finish_);
  pinned_ = {};
  tasks_.clear();
  on_device_.clear();
  finish_ = {};
  return gates;
}

// Runs on the stream of the results, if they are on a device.
void CallBuffers::copy_back() const {
  if (!has_copies()) return;
  const c10::OptionalStreamGuard on_stream(stream_ ? std::optional(stream_->results())
                                                   : std::nullopt);
  for (const auto& [from, to] : copies_) {
    const c10::OptionalDeviceGuard guard(to.device());
    write_result(to, from);
  }
  if (last_) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    last_();
  }
  if (stream_) stream_->extend();
}

}  // namespace q7x2
