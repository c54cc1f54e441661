#include "backend/device_stream.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/supported_device.h"
#include "backend/work_stream.h"

namespace q7x2 {
namespace {

c10::Stream of_normal_priority(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// Gates are made one after the other: a flag that exists is still there when the gate takes it.
template <typename Make>
auto new_gate(const Make& make) {
  constexpr int64_t kFlags = 256;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!Gate::has_flag()) {
    at::Tensor memory =
        at::empty({kFlags * static_cast<int64_t>(Gate::kFlagBytes)},
                  at::TensorOptions().dtype(at::kByte).device(at::kCPU).pinned_memory(true));
    Gate::add_flags(static_cast<std::byte*>(memory.mutable_data_ptr()), kFlags);
    // Never freed: streams may still read it when the process ends.
    new at::Tensor(std::move(memory));
  }
  return make();
}

}  // namespace

DeviceLanes::Lane DeviceLanes::lane(c10::Device device, int peer) {
  const std::lock_guard lock(mutex_);
  const auto key = std::pair(device.index(), peer);
  const auto found = lanes_.find(key);
  if (found != lanes_.end() && found->second.in.device_type() == device.type()) {
    return found->second;
  }
  const c10::Stream out = take_stream(device);
  const Lane made{out, take_stream(device), of_normal_priority(device), traffic_};
  lanes_.insert_or_assign(key, made);
  return made;
}

DeviceStream::DeviceStream(const DeviceLanes::Lane& lane)
    : lane_(lane),
      calls_(calls_of(lane.in.device())),
      ready_(lane.in.device_type()),
      read_(lane.in.device_type()),
      done_(lane.in.device_type()),
      end_(new_gate([] { return Gate(); })) {
  const c10::Stream caller =
      c10::impl::VirtualGuardImpl(lane_.in.device_type()).getStream(lane_.in.device());
  int is_capturing = 0;
  check_stream_call(calls_.is_capturing(caller.native_handle(), &is_capturing),
                    "asking a stream whether it is recorded");
  TORCH_CHECK(is_capturing == 0, "q7x2: the current stream of ", lane_.in.device(),
              " is recorded for a graph. A collective cannot be a part of a graph, because the "
              "host takes part in it; call it outside of the capture");
  ready_.record(caller);
  ready_.block(lane_.out);
  ready_.block(lane_.in);
}

// The allocator must not reuse the tensor's memory before `stream` has done the work enqueued so
// far.
void DeviceStream::keep_for(const at::Tensor& tensor, const c10::Stream& stream) const {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

void DeviceStream::read(
    const std::vector<std::pair<Passage, std::shared_ptr<InputLatch>>>& passages) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard on_stream(lane_.out);
  for (const auto& [passage, latch] : passages) {
    for (size_t k = 0; k < passage.copies.size(); ++k) {
      for (const Copy& copy : passage.copies[k]) {
        at::Tensor host = copy.to;
        host.copy_(copy.from, /*non_blocking=*/true);
        count_as_staged();
        lane_.traffic->staged.to_host += host.nbytes();
        keep_for(copy.from, lane_.out);
      }
      const bool is_last = k + 1 == passage.copies.size();
      Completion::post_after(
          calls_, lane_.out.native_handle(),
          is_last ? latch->arrival() : latch->arrival(passage.strips.begin(k + 1)));
    }
  }
  read_.record(lane_.out);
  read_.block(lane_.in);
}

void DeviceStream::await_reads() const {
  read_.synchronize();
}

std::vector<std::shared_ptr<OutputGate>> DeviceStream::write(const std::vector<Passage>& passages,
                                                             const std::vector<Copy>& last,
                                                             const Finish& finish) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard on_stream(lane_.in);
  gates_.reserve(passages.size());
  for (const Passage& passage : passages) {
    if (passage.copies.empty()) {
      gates_.push_back(nullptr);
      continue;
    }
    gates_.push_back(new_gate([&] { return std::make_shared<OutputGate>(passage.strips); }));
    for (size_t k = 0; k < passage.copies.size(); ++k) {
      gates_.back()->stop(calls_, lane_.in.native_handle(), k);
      copy_in(passage.copies[k]);
    }
  }
  end_.stop(calls_, lane_.in.native_handle(), 0);
  copy_in(last);
  if (finish.enqueue) finish.enqueue();
  for (const at::Tensor& tensor : finish.uses) keep_for(tensor, lane_.in);
  done_.record(lane_.in);
  return gates_;
}

void DeviceStream::count_as_staged() {
  if (!std::exchange(is_staged_, true)) ++lane_.traffic->staged.calls;
}

void DeviceStream::copy_in(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    at::Tensor result = copy.to;
    result.copy_(copy.from, /*non_blocking=*/true);
    if (copy.from.device().is_cpu()) {
      count_as_staged();
      lane_.traffic->staged.to_device += result.nbytes();
    }
    keep_for(result, lane_.in);
  }
}

void DeviceStream::open() noexcept {
  for (const auto& gate : gates_) {
    if (gate) gate->open();
  }
  end_.open();
}

const c10::Stream& DeviceStream::results() const {
  done_.block(lane_.after);
  return lane_.after;
}

void DeviceStream::block_current() const {
  const c10::Stream current =
      c10::impl::VirtualGuardImpl(lane_.in.device_type()).getStream(lane_.in.device());
  done_.block(current);
}

}  // namespace q7x2
