#include "hooks.h"

#include <array>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "memory.h"
#include "stream.h"

namespace accelerator {
namespace {

// The kernels run on the CPU, and so do the random numbers.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex device)
      : DeviceGenerator(device, at::detail::createCPUGenerator()) {}
  DeviceGenerator(c10::DeviceIndex device, at::Generator on_host)
      : c10::GeneratorImpl(c10::Device(kType, device),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(on_host)) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    return new DeviceGenerator(device().index(), host.clone());
  }

  mutable at::Generator host;
};

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* const generators = new std::array{at::make_generator<DeviceGenerator>(0),
                                                 at::make_generator<DeviceGenerator>(1)};
  static_assert(std::tuple_size_v<std::remove_pointer_t<decltype(generators)>> == kDevices);
  return generators->at(static_cast<size_t>(device < 0 ? current_device() : device));
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }
  at::Device getDeviceFromPtr(void* address) const override { return {kType, device_of(address)}; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

at::Generator on_cpu(const at::Generator& generator) {
  const at::Generator& given = generator.defined() ? generator : default_generator(-1);
  const auto* device = dynamic_cast<const DeviceGenerator*>(given.unsafeGetGeneratorImpl());
  return device == nullptr ? given : device->host;
}

void seed_all(uint64_t seed) {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    at::Generator generator = default_generator(device);
    generator.set_current_seed(seed);
  }
}

void register_hooks() {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

}  // namespace accelerator
