// What c10's device-generic classes (guards, c10::Event, c10::Stream) ask the stand-in accelerator.
#include <chrono>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"
#include "stream.h"
#include "stream_calls.h"

namespace accelerator {
namespace {

// A c10::Event of this device: what was recorded last.
struct Recorded {
  std::shared_ptr<Signal> signal;
  bool is_high_priority = false;  // the stream that gives the signal
};

const std::shared_ptr<Signal>& last_of(void* event) {
  return static_cast<Recorded*>(event)->signal;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    set_current_device(device.index());
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.index() < 0 ? current_device() : device.index(), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return stream_from_pool(device.index(), is_high_priority);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return queue_of(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    queue_of(stream).synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Recorded();
    *static_cast<Recorded*>(*event) = {accelerator::record(queue_of(stream)),
                                       is_high_priority(stream)};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const bool from_high = static_cast<Recorded*>(event)->is_high_priority;
    const bool to_high = is_high_priority(stream);
    if (is_left_out(LeftOut::kReady) && to_high && !from_high) return;
    if (is_left_out(LeftOut::kDone) && from_high && !to_high) return;
    accelerator::block(queue_of(stream), last_of(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || last_of(event)->is_set();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) last_of(event)->wait();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Recorded*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(last_of(second)->at() - last_of(first)->at())
        .count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (is_left_out(LeftOut::kRecord) && is_high_priority(stream)) return;
    record_stream(memory, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace accelerator
