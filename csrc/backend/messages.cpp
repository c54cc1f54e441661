// Point-to-point messages: send, receive, and receive from any rank.
#include "backend/argument_checks.h"
#include "backend/collectives.h"

namespace q7x2::collectives {

using c10d::OpType;

namespace {

WorkPointer message(GroupCalls& group, OpType type, const char* title, Tensors& tensors, int peer,
                    int tag) {
  const bool sends = type == OpType::SEND;
  const Complain fn = group.enter(sends ? "send" : "recv");
  c10d::assertSingleElement(fn, tensors);
  check_dense(fn, tensors);
  TORCH_CHECK(tag >= 0, "Tag must be nonnegative");
  TORCH_CHECK(
      type == OpType::RECVANYSOURCE || (peer >= 0 && peer < group.size() && peer != group.rank()),
      "ProcessGroupQ7x2::", sends ? "send: invalid destination" : "recv: invalid source", " rank ",
      peer, ": expected another rank of a group of ", group.size());
  return group.message(type, title, tensors[0], type == OpType::RECVANYSOURCE ? -1 : peer, tag);
}

}  // namespace

WorkPointer send(GroupCalls& group, Tensors& tensors, int destination, int tag) {
  return message(group, OpType::SEND, "q7x2:send", tensors, destination, tag);
}

WorkPointer receive(GroupCalls& group, Tensors& tensors, int source, int tag) {
  return message(group, OpType::RECV, "q7x2:recv", tensors, source, tag);
}

WorkPointer receive_any(GroupCalls& group, Tensors& tensors, int tag) {
  return message(group, OpType::RECVANYSOURCE, "q7x2:recvAnySource", tensors, -1, tag);
}

}  // namespace q7x2::collectives
