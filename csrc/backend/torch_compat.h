// Everything that depends on the torch version, and nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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

// From torch 2.15 on, backends tell of works that have succeeded.
#if defined(C10D_BACKEND_HAS_HOOKS) && (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)
#define Q7X2_HAS_COMPLETION_HOOKS 1
#endif
inline uint64_t completion_key_of(const c10d::Work& work) {
#ifdef Q7X2_HAS_COMPLETION_HOOKS
  return work.getCompletionKey();
#else
  return reinterpret_cast<uint64_t>(&work);
#endif
}

// Who wants to be told of a group's works. Each is known by a number of its owner's choice.
class Listeners {
 public:
  /// Gets the key of a work that has succeeded, and its duration in milliseconds.
  using Completion = std::function<void(uint64_t key, float milliseconds)>;
  /// A work has failed, or the group is about to be aborted.
  using Abort = std::function<void()>;

  virtual ~Listeners() = default;
  virtual void add(int64_t number, Completion hook) = 0;
  virtual void add(int64_t number, Abort hook) = 0;
  virtual void remove_completion(int64_t number) = 0;
  virtual void remove_abort(int64_t number) = 0;
};

// Memory that other ranks write and read. In torch 2.14 and later it is c10d's Window. A timeout
// that is not set is the group's. Offsets are in elements.
#ifdef C10D_BACKEND_HAS_WINDOW
inline constexpr bool kHasWindow = true;
using WindowBase = c10d::Window;
#else
inline constexpr bool kHasWindow = false;
using WindowBase = torch::CustomClassHolder;
#endif
class Window : public WindowBase {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  /// All ranks must call these. `owning`: whether the window keeps the tensor.
  virtual void open(const at::Tensor& tensor, bool owning) = 0;
  virtual void close() = 0;
  virtual WorkPointer put_at(const at::Tensor& tensor, int64_t rank, int64_t offset, bool async_op,
                             Milliseconds timeout) = 0;
  virtual WorkPointer signal_to(int64_t rank, bool async_op, Milliseconds timeout) = 0;
  virtual WorkPointer await_signal(int64_t rank, bool async_op, Milliseconds timeout) = 0;

#ifdef C10D_BACKEND_HAS_WINDOW
  void tensor_register(const at::Tensor& tensor, bool owning) override {
    open(tensor, owning);
  }
  void tensor_deregister() override {
    close();
  }
  WorkPointer put(const at::Tensor& tensor, int64_t rank, int64_t offset, bool async_op,
                  const c10d::PutOptions& opts) override {
    return put_at(tensor, rank, offset, async_op, opts.timeout);
  }
  WorkPointer signal(int64_t rank, bool async_op, const c10d::SignalOptions& opts) override {
    return signal_to(rank, async_op, opts.timeout);
  }
  WorkPointer wait_signal(int64_t rank, bool async_op,
                          const c10d::WaitSignalOptions& opts) override {
    return await_signal(rank, async_op, opts.timeout);
  }
  c10d::WindowAttr get_attr(int64_t) override {
    return {};
  }
#endif
};

// In torch 2.14 and later, a backend can replace its members: c10d's reconfigure. Earlier, the rank
// and the size of a backend are constants.
class Backend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  bool supportsTimeEstimation() const override { return true; }
#ifdef C10D_BACKEND_HAS_WINDOW
  bool supportsWindow() const override {
    return true;
  }
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override {
    c10::intrusive_ptr<Window> window = make_window();
    if (tensor) window->open(*tensor, /*owning=*/true);
    return window;
  }
#endif
#ifdef Q7X2_HAS_COMPLETION_HOOKS
  bool supportsCompletionHooks() const override {
    return true;
  }
  void registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) override {
    listeners().add(hook_id, [hook = std::move(hook)](uint64_t key, float milliseconds) {
      hook({key, milliseconds});
    });
  }
  void unregisterCompletionHook(int64_t hook_id) override {
    listeners().remove_completion(hook_id);
  }
  bool supportsAbortHooks() const override {
    return true;
  }
#endif
#ifdef C10D_BACKEND_HAS_HOOKS
  void registerAbortHook(int64_t hook_id, c10d::AbortHook hook) override {
    listeners().add(hook_id, Listeners::Abort(std::move(hook)));
  }
  void unregisterAbortHook(int64_t hook_id) override {
    listeners().remove_abort(hook_id);
  }
#endif
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
  virtual Listeners& listeners() = 0;
  /// A window without a tensor.
  virtual c10::intrusive_ptr<Window> make_window() = 0;
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
