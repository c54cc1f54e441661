// Everything that depends on the torch version, and nothing else.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11)
#error "q7x2 needs torch 2.11 or newer"
#endif

namespace q7x2::compat {

// In torch 2.14 and later, a backend can replace its members: c10d's reconfigure. Earlier, the rank
// and the size of a backend are constants.
class Backend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override {
    return true;
  }
  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    return own_handle();
  }
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& opts) override {
    std::vector<std::string> handles;
    std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); },
               opts.handles);
    const bool ordered = std::holds_alternative<std::vector<std::string>>(opts.handles);
    const auto [rank, size] =
        take_members(std::to_string(opts.uuid), std::move(handles), ordered, opts.timeout);
    rank_ = rank;
    size_ = size;
    auto done = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<at::Device>());
    done->markCompleted(c10::IValue(std::vector<at::Tensor>()));
    return c10d::Work::create_from_future(done);
  }
#endif

 protected:
  /// The handle of this process, by which others can reach it.
  virtual std::string own_handle() const = 0;
  /// Becomes the group of the processes that the handles name, or throws and stays unchanged.
  /// Returns the new rank and size. `timeout`: none means the group's timeout.
  virtual std::pair<int, int> take_members(std::string uuid, std::vector<std::string> handles,
                                           bool ordered,
                                           std::optional<std::chrono::milliseconds> timeout) = 0;
};

/// Whether the group must have no members before the first `reconfigure`.
inline bool begins_without_members(const c10d::DistributedBackendOptions& options) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  return options.enable_reconfigure;
#else
  static_cast<void>(options);
  return false;
#endif
}

// Named NCCLPreMulSumSupplement before 2.13, which keeps that name as an alias.
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;

// The type of a coalesced reduce-scatter in a Work. Since torch 2.13 it has its own type.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::COALESCED;
#endif

}  // namespace q7x2::compat
