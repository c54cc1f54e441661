// Point to point: send, receive, and receive from any rank.
#include "backend/argument_checks.h"
#include "backend/process_group.h"
#include "executor/collective/message.h"

namespace q7x2 {

using c10d::OpType;

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::message(OpType type, const char* title,
                                                         Tensors& tensors, int peer, int tag) {
  const bool sends = type == OpType::SEND;
  const Complain fn = enter(sends ? "send" : "recv");
  c10d::assertSingleElement(fn, tensors);
  check_dense(fn, tensors);
  TORCH_CHECK(tag >= 0, "Tag must be nonnegative");
  TORCH_CHECK(type == OpType::RECVANYSOURCE || (peer >= 0 && peer < size_ && peer != rank_),
              "ProcessGroupQ7x2::", sends ? "send: invalid destination" : "recv: invalid source",
              " rank ", peer, ": expected another rank of a group of ", size_);
  auto buffers = std::make_shared<HostBuffers>();
  const Region region = sends ? buffers->input(tensors[0]) : buffers->output(tensors[0]);
  auto work = c10::make_intrusive<WorkQ7x2>(runtime_, rank_, type, title, ProfiledInputs(tensors),
                                            std::vector<Tensors>{tensors},
                                            static_cast<uint64_t>(sequence_));
  auto task = std::make_shared<MessageTask>(
      group_, sends ? MessageTask::Direction::kSend : MessageTask::Direction::kReceive,
      type == OpType::RECVANYSOURCE ? MessageTask::kAnySource : peer, static_cast<uint32_t>(tag),
      region.data, region.bytes, buffers, timeout_.load());
  std::shared_ptr<InputLatch> inputs;
  if (buffers->device()) {
    inputs = read_device(*buffers, {memory_of_message(region, sends)}, peer)[0];
    buffers->write();
  }
  if (sends) task->set_inputs(in_order(std::move(inputs), peer));
  return start(work, {std::move(task)}, std::move(buffers), /*caller_waits=*/false);
}

// Messages to one peer are sent in the order of the calls: one of the CPU waits for those of a
// device before it.
std::shared_ptr<InputLatch> ProcessGroupQ7x2::in_order(std::shared_ptr<InputLatch> inputs,
                                                       int peer) {
  if (!inputs && !has_sent_from_device_) return nullptr;
  has_sent_from_device_ = true;
  const std::lock_guard<std::mutex> lock(sends_mutex_);
  std::weak_ptr<InputLatch>& last = last_sends_[peer];
  if (inputs) {
    last = inputs;
  } else {
    inputs = last.lock();
  }
  return inputs;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::send(Tensors& tensors, int destination, int tag) {
  return message(OpType::SEND, "q7x2:send", tensors, destination, tag);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::recv(Tensors& tensors, int source, int tag) {
  return message(OpType::RECV, "q7x2:recv", tensors, source, tag);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::recvAnysource(Tensors& tensors, int tag) {
  return message(OpType::RECVANYSOURCE, "q7x2:recvAnySource", tensors, -1, tag);
}

}  // namespace q7x2
