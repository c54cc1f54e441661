// WindowQ7x2: c10d's Window, memory that other ranks write and read without this rank's help.
//
// executor/window/peer_window.h does the work. This class knows tensors and Works, and exchanges
// what the ranks must know of each other by all-gathers of the group.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/process_group.h"
#include "backend/torch_compat.h"
#include "executor/window/peer_window.h"

namespace q7x2 {

class WindowQ7x2 final : public compat::Window {
 public:
  /// It keeps the group.
  explicit WindowQ7x2(ProcessGroupQ7x2& group)
      : group_(c10::intrusive_ptr<ProcessGroupQ7x2>::unsafe_reclaim_from_nonowning(&group)) {}

  void open(const at::Tensor& tensor, bool owning) override;
  /// As `open`, with memory that the ranks of the host share. Returns the tensor: zeros.
  at::Tensor open_shared(at::IntArrayRef sizes, at::ScalarType type);
  void close() override;
  /// Whether this rank copies into the window of that one. Throws as `put`.
  bool is_direct(int64_t rank) const;

  WorkPointer put_at(const at::Tensor& tensor, int64_t rank, int64_t offset, bool async_op,
                     std::chrono::milliseconds timeout) override;
  /// Reads from the rank's window into the tensor.
  WorkPointer get_from(const at::Tensor& tensor, int64_t rank, int64_t offset, bool async_op,
                       std::chrono::milliseconds timeout);
  WorkPointer signal_to(int64_t rank, bool async_op, std::chrono::milliseconds timeout) override;
  WorkPointer await_signal(int64_t rank, bool async_op, std::chrono::milliseconds timeout) override;

 private:
  GroupCalls& calls() const { return group_->calls(); }
  /// Throws c10::Error if there is no window.
  PeerWindow& window(const char* call) const;
  void make(const at::Tensor& tensor, PeerWindow::Options options);
  std::vector<std::byte> exchange(std::span<const std::byte> mine) const;
  void check_operand(const char* call, const at::Tensor& tensor) const;
  /// The Work of a transfer that `start` begins. `operand`: kept until it is over.
  template <typename Start>
  WorkPointer transfer(const char* title, const std::optional<at::Tensor>& operand, bool async_op,
                       const Start& start);

  const c10::intrusive_ptr<ProcessGroupQ7x2> group_;
  std::shared_ptr<PeerWindow> window_;
  at::ScalarType type_ = at::kByte;
};

}  // namespace q7x2
