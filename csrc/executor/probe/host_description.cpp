#include "executor/probe/host_description.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "executor/collective/codec_rates.h"
#include "fabric/host.h"
#include "kernels/cpu/reduce.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;

Fabric::Hardware hardware_of_host() {
  try {
    HostInfo info = host_info();
    Fabric::Hardware hardware{.machine = machine_key(),
                              .cpu = info.cpu_model,
                              .packages = info.packages,
                              .numa_nodes = info.numa_nodes,
                              .cores = info.cores,
                              .threads = info.hardware_threads,
                              .memory = info.memory_bytes,
                              .nics = {},
                              .rdma = std::move(info.rdma_devices),
                              .gpus = std::move(info.gpus)};
    std::ranges::copy_if(info.network_interfaces, std::back_inserter(hardware.nics),
                         [](const NetworkInterface& nic) { return nic.up && !nic.loopback; });
    return hardware;
  } catch (const Error&) {
    // Locality is for people and for placing threads; a host that hides it still has its rates.
    return {};
  }
}

// Bytes a second that this core copies and adds, out of caches of its own: the best of some,
// since whatever else runs can only make it slower.
std::pair<double, double> memory_rates() {
  constexpr size_t kCount = size_t{1} << 21;
  constexpr size_t kBytes = kCount * sizeof(float);
  constexpr int kTimes = 5;
  std::vector<float> target(kCount, 1.0F);
  const std::vector<float> source(kCount, 2.0F);
  const auto best = [](const auto& body) {
    double rate = 0;
    for (int i = 0; i < kTimes; ++i) {
      const auto start = Clock::now();
      body();
      const std::chrono::duration<double> seconds = Clock::now() - start;
      rate = std::max(rate, static_cast<double>(kBytes) / std::max(seconds.count(), 1e-9));
    }
    return rate;
  };
  const double copy = best([&] { std::memcpy(target.data(), source.data(), kBytes); });
  const double fold = best([&] {
    const std::array<const void*, 2> sources{target.data(), source.data()};
    reduce(target.data(), sources, kCount, DType::kFloat32, ReduceKind::kSum);
  });
  return {copy, fold};
}

}  // namespace

HostDescription describe_host() {
  HostDescription description{.cores = usable_cpus(), .hardware = hardware_of_host(), .rates = {}};
  std::tie(description.rates.copy, description.rates.reduce) = memory_rates();
  description.rates.codecs = measure_codecs();
  return description;
}

}  // namespace q7x2
