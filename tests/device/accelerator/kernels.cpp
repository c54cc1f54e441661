// All operators that are not named elsewhere run here. The operator's Meta kernel says what shapes
// come out, memory for them is taken, and the operator's CPU kernel runs later in the thread of the
// current stream, on the kernels' view of the memory. The host does not wait, unless the shapes
// depend on the data (nonzero), or the result is a number (item).
#include "kernels.h"

#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "hooks.h"
#include "memory.h"

namespace accelerator {
namespace {

using Stack = torch::jit::Stack;

// `value` with all its tensors replaced.
template <typename Replace>
c10::IValue with_tensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(replace(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

// Runs `op`: its results replace the arguments on `stack`. The arguments must outlive that, because
// torch's boxing drops them before it returns references to the outputs among them, if there are
// several (linalg_cholesky_ex.L).
void call(const c10::OperatorHandle& op, Stack& stack) {
  const Stack kept = stack;
  op.callBoxed(stack);
}

// Python's numbers do not decide the type of a result.
void keep_number(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack) : op_(op) {
    const size_t count = op.schema().arguments().size();
    arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    torch::jit::drop(stack, count);
    for (const c10::IValue& argument : arguments_) {
      with_tensors(argument, [&](const at::Tensor& tensor) {
        if (is_ours(tensor) && !device_) device_ = tensor.device();
        return tensor;
      });
      if (argument.isDevice() && !device_ && argument.toDevice().type() == kType) {
        device_ = argument.toDevice();
      }
    }
    if (!device_) device_ = c10::Device(kType, current_device());
  }

  Stack run() {
    const c10::OptionalDeviceGuard guard(device_);
    const std::optional<Stack> shapes = shapes_of_results();
    return shapes ? run_later(*shapes) : run_now();
  }

 private:
  using Replacements = std::unordered_map<at::TensorImpl*, at::Tensor>;

  bool is_generator(size_t index) const {
    const auto& type = *op_.schema().arguments()[index].type();
    return type.isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
  }

  // The arguments for the same operator on another device.
  template <typename Replace>
  Stack arguments_for(c10::DeviceType device, const Replace& replace) const {
    Stack result;
    Replacements replaced;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (is_generator(i)) {
        const auto given = arguments_[i].isNone() ? at::Generator() : arguments_[i].toGenerator();
        result.emplace_back(device == c10::kCPU ? c10::IValue(on_cpu(given)) : c10::IValue());
      } else if (arguments_[i].isDevice()) {
        result.emplace_back(c10::Device(device));
      } else {
        result.push_back(with_tensors(arguments_[i], [&](const at::Tensor& tensor) {
          if (!tensor.defined()) return tensor;
          auto [found, is_new] = replaced.try_emplace(tensor.unsafeGetTensorImpl());
          if (is_new) {
            found->second = replace(tensor);
            keep_number(tensor, found->second);
          }
          return found->second;
        }));
      }
    }
    return result;
  }

  Stack cpu_arguments() const {
    return arguments_for(c10::kCPU, [](const at::Tensor& tensor) {
      // The host may write to its own tensors before the kernel comes.
      return is_ours(tensor) ? as_kernels_see(tensor) : tensor.clone();
    });
  }

  // None: only the data says. Resizes what the operator resizes.
  std::optional<Stack> shapes_of_results() const {
    for (const auto& result : op_.schema().returns()) {
      if (!result.type()->isSubtypeOf(*c10::TensorType::get()) &&
          !result.type()->isSubtypeOf(*c10::ListType::ofTensors())) {
        return std::nullopt;
      }
    }
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    Stack stack = arguments_for(c10::kMeta, [&](const at::Tensor& tensor) {
      if (!is_ours(tensor) && tensor.dim() == 0) return tensor;  // a number
      at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                          tensor.options().device(c10::kMeta).pinned_memory(false));
      pairs.emplace_back(tensor, meta);
      return meta;
    });
    try {
      const at::AutoDispatchBelowADInplaceOrView below;
      call(op_, stack);
    } catch (const std::exception&) {
      return std::nullopt;  // if the arguments are wrong, the CPU says so
    }
    for (const auto& [tensor, meta] : pairs) {
      if (is_ours(tensor) && tensor.sizes() != meta.sizes()) tensor.resize_(meta.sizes());
    }
    return stack;
  }

  // What the operator returns that it was given: an argument that it writes to.
  std::optional<c10::IValue> argument_returned_as(size_t index) const {
    const c10::AliasInfo* const alias = op_.schema().returns()[index].alias_info();
    if (alias == nullptr) return std::nullopt;
    TORCH_CHECK(alias->isWrite(), op_.schema().name(),
                ": the stand-in accelerator lacks this view");
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const c10::AliasInfo* const other = op_.schema().arguments()[i].alias_info();
      if (other != nullptr && other->beforeSet() == alias->beforeSet()) return arguments_[i];
    }
    return std::nullopt;
  }

  Stack run_later(const Stack& shapes) const {
    Stack results;
    std::vector<std::optional<c10::IValue>> targets;  // what a kernel's results are copied to
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (const auto given = argument_returned_as(i)) {
        results.push_back(*given);
        targets.emplace_back();
        continue;
      }
      results.push_back(with_tensors(shapes[i], [&](const at::Tensor& meta) {
        return meta.defined() ? at::empty_strided(meta.sizes(), meta.strides(),
                                                  meta.options().device(*device_))
                              : meta;
      }));
      targets.emplace_back(with_tensors(results.back(), [](const at::Tensor& tensor) {
        return tensor.defined() ? as_kernels_see(tensor) : tensor;
      }));
    }
    launch(device_->index(),
           [op = op_, stack = cpu_arguments(), targets = std::move(targets)]() mutable {
             call(op, stack);
             for (size_t i = 0; i < targets.size(); ++i) {
               if (targets[i]) fill(*targets[i], stack[i]);
             }
           });
    return results;
  }

  static void fill(const c10::IValue& targets, const c10::IValue& results) {
    std::vector<at::Tensor> from;
    with_tensors(results, [&](const at::Tensor& tensor) { return from.emplace_back(tensor); });
    size_t next = 0;
    with_tensors(targets, [&](const at::Tensor& tensor) {
      const at::Tensor& source = from[next++];
      return tensor.defined() ? tensor.copy_(source) : tensor;
    });
  }

  Stack run_now() const {
    queue_of(current_stream(device_->index())).synchronize();
    Stack stack = cpu_arguments();
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      call(op_, stack);
    }
    for (size_t i = 0; i < stack.size(); ++i) {
      if (const auto given = argument_returned_as(i)) {
        stack[i] = *given;
        continue;
      }
      stack[i] = with_tensors(stack[i], [&](const at::Tensor& tensor) {
        return tensor.defined() ? tensor.to(*device_) : tensor;
      });
    }
    return stack;
  }

  const c10::OperatorHandle op_;
  Stack arguments_;
  std::optional<c10::Device> device_;
};

void run_on_stream(const c10::OperatorHandle& op, Stack* stack) {
  for (c10::IValue& result : Call(op, *stack).run()) stack->push_back(std::move(result));
}

}  // namespace

at::Tensor as_kernels_see(const at::Tensor& tensor) {
  const at::Tensor plain =
      at::from_blob(kernel_view(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                    at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU));
  plain._set_conj(tensor.is_conj());
  plain._set_neg(tensor.is_neg());
  return plain;
}

void launch(c10::DeviceIndex device, std::function<void()> work) {
  queue_of(current_stream(device)).enqueue([work = std::move(work)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    work();
  });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_stream>());
}

}  // namespace accelerator
