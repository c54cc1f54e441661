#include "executor/window/window_service.h"

#include <utility>

namespace q7x2 {
namespace {

enum Token : uint32_t { kOrder, kBytes };

}  // namespace

WindowService::WindowService(std::shared_ptr<Group> group, int peer, WindowTags tags,
                             std::span<std::byte> window, SignalBoard board,
                             std::shared_ptr<void> owner)
    : Task(std::move(group), std::chrono::milliseconds::zero()),
      peer_(peer),
      tags_(tags),
      window_(window),
      board_(board),
      owner_(std::move(owner)) {}

std::string WindowService::name() const {
  return "what rank " + std::to_string(peer_) + " puts into the window of rank " +
         std::to_string(group().rank()) + " in group '" + group().membership().name() + "'";
}

// It has no timeout, and is never reported as late.
void WindowService::start(Locked& locked) {
  record(locked).warn_at = TimePoint::max();
  record(locked).next_inquiry = TimePoint::max();
  await_order(locked);
}

void WindowService::await_order(Locked& locked) {
  group().messages().receive_message(locked, *this, kOrder, peer_, tags_.orders(), &order_,
                                     sizeof(order_));
}

void WindowService::completed(Locked& locked, uint32_t token, size_t length, uint64_t) {
  if (token == kOrder && length == sizeof(order_)) return carry_out(locked);
  const bool is_whole = order_.kind == WindowOrder::Kind::kGet || length == order_.bytes;
  if (token == kOrder || !is_whole) {
    return fail(locked,
                Error(ErrorCode::kMismatch,
                      name() + ": a message of " + std::to_string(length) + " bytes", peer_));
  }
  await_order(locked);
}

void WindowService::carry_out(Locked& locked) {
  using Kind = WindowOrder::Kind;
  const WindowOrder order = order_;
  switch (order.kind) {
    case Kind::kSignal:
      board_.signal(peer_);
      return await_order(locked);
    case Kind::kClose:
      return finish(locked);
    case Kind::kPut:
    case Kind::kGet:
      break;
    default:
      return fail(locked, Error(ErrorCode::kMismatch, name() + ": an unknown order", peer_));
  }
  if (order.bytes == 0 || order.bytes > window_.size() ||
      order.offset > window_.size() - order.bytes) {
    return fail(locked,
                Error(ErrorCode::kMismatch,
                      name() + ": " + std::to_string(order.bytes) + " bytes at " +
                          std::to_string(order.offset) + " of " + std::to_string(window_.size()),
                      peer_));
  }
  std::byte* const place = window_.data() + order.offset;
  if (order.kind == Kind::kPut) {
    group().messages().receive_message(locked, *this, kBytes, peer_, tags_.puts(), place,
                                       order.bytes);
  } else {
    group().messages().send_message(locked, *this, kBytes, peer_, tags_.gets(), place, order.bytes);
  }
}

}  // namespace q7x2
