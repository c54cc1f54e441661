#include "backend/window.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/argument_checks.h"
#include "backend/collectives.h"
#include "base/digest.h"

namespace q7x2 {

using collectives::WorkPointer;

namespace {

/// Runs `body`, whose Errors become c10d's exceptions.
template <typename Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::rethrow_exception(to_exception(error));
  }
}

void check_host_tensor(const char* call, const at::Tensor& tensor) {
  const bool is_dense = tensor.layout() == at::kStrided;
  TORCH_CHECK_TYPE(is_dense && tensor.device().is_cpu() && is_plain(tensor), "q7x2: ", call,
                   ": expected a contiguous dense tensor on the CPU, got ", tensor.layout(), " on ",
                   tensor.device(), is_dense ? c10::str(", strides ", tensor.strides()) : "");
}

/// An offset in elements as bytes; too large for any window if it is negative.
size_t bytes_before(int64_t offset, at::ScalarType type) {
  if (offset < 0) return std::numeric_limits<size_t>::max();
  return static_cast<size_t>(offset) * c10::elementSize(type);
}

/// The rank; -1 for numbers that no rank has.
int rank_of(int64_t rank) {
  return rank >= 0 && rank <= std::numeric_limits<int>::max() ? static_cast<int>(rank) : -1;
}

/// What was over when it began.
class FinishedTransfer final : public c10d::Work {
 public:
  FinishedTransfer(int rank, const char* title, const ProfiledInputs& inputs)
      : Work(rank, c10d::OpType::UNKNOWN, inputs.tensors() ? title : nullptr, inputs.tensors()) {
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
};

/// A signal that somebody may wait for.
class AwaitedSignal final : public c10d::Work {
 public:
  AwaitedSignal(std::shared_ptr<PeerWindow> window, int rank, uint64_t number,
                std::chrono::milliseconds timeout)
      : window_(std::move(window)), rank_(rank), number_(number), timeout_(timeout) {}

  uint64_t number() const { return number_; }
  bool isCompleted() override { return window_->has_signal(rank_, number_); }
  bool isSuccess() const override { return window_->has_signal(rank_, number_); }
  bool wait(std::chrono::milliseconds timeout) override {
    translated([&] {
      window_->wait_signal(rank_, number_, timeout > kNoTimeout ? timeout : timeout_);
      return true;
    });
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  const std::shared_ptr<PeerWindow> window_;
  const int rank_;
  const uint64_t number_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace

c10::intrusive_ptr<compat::Window> ProcessGroupQ7x2::make_window() {
  return c10::make_intrusive<WindowQ7x2>(*this);
}

// ------------------------------------------------------------------------------------- set-up

void WindowQ7x2::open(const at::Tensor& tensor, bool owning) {
  check_host_tensor("a window", tensor);
  make(tensor, {.bytes = tensor.nbytes(),
                .memory = static_cast<std::byte*>(tensor.mutable_data_ptr()),
                .owner = owning ? std::make_shared<at::Tensor>(tensor) : nullptr});
}

at::Tensor WindowQ7x2::open_shared(at::IntArrayRef sizes, at::ScalarType type) {
  const at::Tensor shape = at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
  make(shape, {.bytes = shape.nbytes(), .owner = nullptr});
  return at::from_blob(
      window_->memory().data(), sizes, [kept = window_](void*) {}, at::TensorOptions(type));
}

void WindowQ7x2::make(const at::Tensor& tensor, PeerWindow::Options options) {
  calls().enter();
  calls().refuse_estimate("a window");
  TORCH_CHECK(!window_, "q7x2: a window: it has a tensor already; close it first");
  Digest agreed;
  agreed.add(static_cast<uint64_t>(tensor.scalar_type()));
  options.agreed = agreed.value();
  options.number = calls().next_window();
  window_ = translated([&] {
    return PeerWindow::make(calls().runtime_pointer(), calls().group(), options,
                            [this](std::span<const std::byte> mine) { return exchange(mine); });
  });
  type_ = tensor.scalar_type();
}

void WindowQ7x2::close() {
  PeerWindow& open = window("close");
  translated([&] {
    open.close([this](std::span<const std::byte> mine) { return exchange(mine); },
               calls().effective(c10d::kUnsetTimeout));
    return true;
  });
  window_.reset();
}

std::vector<std::byte> WindowQ7x2::exchange(std::span<const std::byte> mine) const {
  const auto bytes = static_cast<int64_t>(mine.size());
  at::Tensor input = at::empty({bytes}, at::kByte);
  std::memcpy(input.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor output = at::empty({bytes * calls().size()}, at::kByte);
  collectives::all_gather_base(calls(), output, input, {})->wait();
  const auto* begin = static_cast<const std::byte*>(output.const_data_ptr());
  return {begin, begin + output.nbytes()};
}

PeerWindow& WindowQ7x2::window(const char* call) const {
  calls().enter();
  TORCH_CHECK(window_, "q7x2: ", call, ": the window has no tensor: it is closed, or not open yet");
  return *window_;
}

bool WindowQ7x2::is_direct(int64_t rank) const {
  const PeerWindow& open = window("is_direct");
  TORCH_CHECK(rank >= 0 && rank < calls().size(), "q7x2: is_direct: expected a rank of a group of ",
              calls().size(), ", got ", rank);
  return open.is_direct(static_cast<int>(rank));
}

// ---------------------------------------------------------------------------------- transfers

void WindowQ7x2::check_operand(const char* call, const at::Tensor& tensor) const {
  check_host_tensor(call, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == type_, "q7x2: ", call, ": expected elements of ", type_,
                   ", as the window has, got ", tensor.scalar_type());
}

template <typename Start>
WorkPointer WindowQ7x2::transfer(const char* title, const std::optional<at::Tensor>& operand,
                                 bool async_op, const Start& start) {
  const ProfiledInputs inputs = operand ? ProfiledInputs({*operand}) : ProfiledInputs();
  PeerWindow::Tasks tasks = translated(start);
  if (tasks.empty()) return c10::make_intrusive<FinishedTransfer>(calls().rank(), title, inputs);
  auto work = c10::make_intrusive<WorkQ7x2>(
      calls().runtime_pointer(), calls().rank(), c10d::OpType::UNKNOWN, title, inputs,
      std::vector<std::vector<at::Tensor>>{}, calls().sequence());
  work->start({}, std::make_shared<CallBuffers>(), /*caller_waits=*/false, nullptr,
              std::move(tasks));
  if (!async_op) work->wait();
  return work;
}

WorkPointer WindowQ7x2::put_at(const at::Tensor& tensor, int64_t rank, int64_t offset,
                               bool async_op, std::chrono::milliseconds timeout) {
  PeerWindow& open = window("put");
  check_operand("put", tensor);
  return transfer("q7x2:put", tensor, async_op, [&] {
    return open.put(rank_of(rank), bytes_before(offset, type_), tensor.const_data_ptr(),
                    tensor.nbytes(), std::make_shared<at::Tensor>(tensor),
                    calls().effective(timeout));
  });
}

WorkPointer WindowQ7x2::get_from(const at::Tensor& tensor, int64_t rank, int64_t offset,
                                 bool async_op, std::chrono::milliseconds timeout) {
  PeerWindow& open = window("get");
  check_operand("get", tensor);
  return transfer("q7x2:get", tensor, async_op, [&] {
    return open.get(rank_of(rank), bytes_before(offset, type_), tensor.mutable_data_ptr(),
                    tensor.nbytes(), std::make_shared<at::Tensor>(tensor),
                    calls().effective(timeout));
  });
}

WorkPointer WindowQ7x2::signal_to(int64_t rank, bool async_op, std::chrono::milliseconds timeout) {
  PeerWindow& open = window("signal");
  return transfer("q7x2:signal", {}, async_op,
                  [&] { return open.signal(rank_of(rank), calls().effective(timeout)); });
}

WorkPointer WindowQ7x2::await_signal(int64_t rank, bool async_op,
                                     std::chrono::milliseconds timeout) {
  PeerWindow& open = window("wait_signal");
  TORCH_CHECK(rank >= 0 && rank < calls().size(),
              "q7x2: wait_signal: expected a rank of a group of ", calls().size(), ", got ", rank);
  const auto peer = static_cast<int>(rank);
  auto work = c10::make_intrusive<AwaitedSignal>(window_, peer, open.next_signal(peer),
                                                 calls().effective(timeout));
  if (async_op) return work;
  try {
    work->wait(kNoTimeout);
  } catch (...) {
    window_->give_back(peer, work->number());
    throw;
  }
  return work;
}

}  // namespace q7x2
