#include "backend/work_stream.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/supported_device.h"

namespace q7x2 {
namespace {

std::shared_ptr<std::byte> bytes_of(at::Tensor memory) {
  auto* const data = static_cast<std::byte*>(memory.mutable_data_ptr());
  return {data, [memory = std::move(memory)](std::byte*) {}};
}

class TorchWorkStream final : public WorkStream {
 public:
  explicit TorchWorkStream(const c10::Stream& stream)
      : stream_(stream), calls_(calls_of(stream.device())) {}

  std::shared_ptr<std::byte> pinned(size_t bytes) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return bytes_of(at::empty({static_cast<int64_t>(bytes)},
                              at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
  }
  void with(const std::function<void()>& enqueue) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::StreamGuard on_stream(stream_);
    enqueue();
  }
  void* handle() const override { return stream_.native_handle(); }
  const StreamCalls& calls() const override { return calls_; }

  // The allocator reuses the memory in the order of the stream.
  std::shared_ptr<std::byte> scratch(size_t bytes) override {
    return bytes_of(at::empty({static_cast<int64_t>(bytes)},
                              at::TensorOptions().dtype(at::kByte).device(stream_.device())));
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes, Way way) override {
    const c10::Device host(at::kCPU);
    at::Tensor target = view(to, bytes, way == Way::kToHost ? host : stream_.device());
    target.copy_(
        view(const_cast<std::byte*>(from), bytes, way == Way::kToDevice ? host : stream_.device()),
        /*non_blocking=*/true);
  }

 private:
  static at::Tensor view(std::byte* data, size_t bytes, const c10::Device& device) {
    return at::for_blob(data, {static_cast<int64_t>(bytes)})
        .options(at::TensorOptions().dtype(at::kByte).device(device))
        .target_device(device)
        .make_tensor();
  }

  const c10::Stream stream_;
  const StreamCalls& calls_;
};

c10::Stream of_pool(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

struct Reserved {
  explicit Reserved(const c10::Device& device)
      : out(of_pool(device)),
        in(of_pool(device)),
        streams{std::make_shared<TorchWorkStream>(out), std::make_shared<TorchWorkStream>(in)} {}
  const c10::Stream out;
  const c10::Stream in;
  const WorkStreams streams;
};

const Reserved& reserved(const c10::Device& device) {
  static std::mutex mutex;
  static auto* const of_process = new std::unordered_map<c10::Device, Reserved>();
  const std::lock_guard lock(mutex);
  return of_process->try_emplace(device, device).first->second;
}

}  // namespace

WorkStreams work_streams(const c10::Device& device) {
  return reserved(device).streams;
}

c10::Stream take_stream(const c10::Device& device) {
  const Reserved& others = reserved(device);
  for (;;) {
    const c10::Stream stream = of_pool(device);
    if (stream != others.out && stream != others.in) return stream;
  }
}

}  // namespace q7x2
