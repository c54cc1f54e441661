#include "executor/probe/courier.h"

#include <algorithm>
#include <utility>

#include "executor/collective/carry_out.h"
#include "executor/probe/probe_tasks.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr uint32_t kLength = 6;  // channels; probe_tasks.cpp has the others
constexpr uint32_t kText = 7;
constexpr uint32_t kTaken = 8;

/// One text: its length, then its bytes. Between hosts the bytes are one message. Shared memory's
/// descriptors carry few bytes each, and its mailboxes may be full of them: who sends waits until
/// the text was taken, because shared memory moves on only for tasks that expect a descriptor.
class TextTask : public Conversation {
 public:
  TextTask(std::shared_ptr<Group> group, int peer, std::chrono::milliseconds timeout)
      : Conversation(std::move(group), "text", peer, Wire::kShared, /*tiny=*/true, timeout) {}

 protected:
  size_t next_piece(size_t offset) const {
    const size_t left = text_.size() - offset;
    return shares_memory() ? std::min(left, ShmChannel::kInlineBytes) : left;
  }

  std::string text_;
  uint64_t length_ = 0;
};

class SendText final : public TextTask {
 public:
  SendText(std::shared_ptr<Group> group, int peer, const std::string& text,
           std::chrono::milliseconds timeout)
      : TextTask(std::move(group), peer, timeout) {
    text_ = text;
    length_ = text.size();
  }

 private:
  void begin(Locked& locked) override {
    if (shares_memory()) receive(locked, kTaken, nullptr, 0);
    send(locked, kLength, &length_, sizeof(length_));
    for (size_t offset = 0; offset < text_.size();) {
      const size_t bytes = next_piece(offset);
      send(locked, kText, text_.data() + offset, bytes);
      offset += bytes;
    }
  }
  void received(Locked&, uint32_t, size_t) override {}
};

class ReceiveText final : public TextTask {
 public:
  ReceiveText(std::shared_ptr<Group> group, int peer, size_t max_bytes,
              std::chrono::milliseconds timeout)
      : TextTask(std::move(group), peer, timeout), peer_(peer), max_bytes_(max_bytes) {}

  /// Only after `done`.
  std::string take() { return std::move(text_); }

 private:
  void begin(Locked& locked) override { receive(locked, kLength, &length_, sizeof(length_)); }

  void received(Locked& locked, uint32_t channel, size_t bytes) override {
    if (channel == kText) {
      if (bytes != expected_) return refuse(locked, "cut short");
      offset_ += bytes;
    } else if (bytes != sizeof(length_) || length_ > max_bytes_) {
      return refuse(locked, "too long");
    } else {
      text_.resize(length_);
    }
    if (offset_ == text_.size()) {
      if (shares_memory()) send(locked, kTaken, nullptr, 0);
      return;
    }
    expected_ = next_piece(offset_);
    receive(locked, kText, text_.data() + offset_, expected_);
  }

  void refuse(Locked& locked, const char* why) {
    fail(locked, Error(ErrorCode::kMismatch,
                       "the text from rank " + std::to_string(peer_) + " is " + why, peer_));
  }

  const int peer_;
  const size_t max_bytes_;
  size_t offset_ = 0;
  size_t expected_ = 0;
};

}  // namespace

// A task without any time would have no deadline.
std::chrono::milliseconds GroupCourier::left() const {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()),
                  std::chrono::milliseconds(1));
}

void GroupCourier::send(int rank, const std::string& text) {
  carry_out(*group_, std::make_shared<SendText>(group_, rank, text, left()));
}

std::string GroupCourier::receive(int rank) {
  const auto task = std::make_shared<ReceiveText>(group_, rank, max_bytes_, left());
  carry_out(*group_, task);
  return task->take();
}

}  // namespace q7x2
