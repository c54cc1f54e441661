// The calls of c10d on a group: collectives, messages, and coalescing.
#include <utility>

#include "backend/collectives.h"
#include "backend/process_group.h"

namespace q7x2 {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

WorkPointer ProcessGroupQ7x2::coded_all_reduce(Tensors& tensors, const CodedOptions& opts) {
  return collectives::coded_all_reduce(calls_, tensors, opts);
}

WorkPointer ProcessGroupQ7x2::coded_reduce_scatter(Tensors& outputs, Tensors& inputs,
                                                   const CodedOptions& opts) {
  return collectives::coded_reduce_scatter(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::coded_all_gather(Tensors& outputs, Tensors& inputs,
                                               const CodedOptions& opts) {
  return collectives::coded_all_gather(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return collectives::broadcast(calls_, tensors, opts);
}

WorkPointer ProcessGroupQ7x2::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return collectives::all_reduce(calls_, tensors, opts);
}

WorkPointer ProcessGroupQ7x2::allreduce_sparse(Tensors& tensors,
                                               const c10d::AllreduceOptions& opts) {
  return collectives::sparse_all_reduce(calls_, tensors, opts);
}

WorkPointer ProcessGroupQ7x2::allreduce_coalesced(Tensors& tensors,
                                                  const c10d::AllreduceCoalescedOptions& opts) {
  return collectives::all_reduce_coalesced(calls_, tensors, opts);
}

WorkPointer ProcessGroupQ7x2::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return collectives::reduce(calls_, tensors, opts);
}

WorkPointer ProcessGroupQ7x2::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& opts) {
  return collectives::all_gather(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::_allgather_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::AllgatherOptions& opts) {
  return collectives::all_gather_base(calls_, output, input, opts);
}

WorkPointer ProcessGroupQ7x2::allgather_coalesced(std::vector<Tensors>& output_lists,
                                                  Tensors& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  return collectives::all_gather_coalesced(calls_, output_lists, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& opts) {
  return collectives::all_gather_into_tensor_coalesced(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::GatherOptions& opts) {
  return collectives::gather(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ScatterOptions& opts) {
  return collectives::scatter(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                             const c10d::ReduceScatterOptions& opts) {
  return collectives::reduce_scatter(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::ReduceScatterOptions& opts) {
  return collectives::reduce_scatter_base(calls_, output, input, opts);
}

WorkPointer ProcessGroupQ7x2::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return collectives::reduce_scatter_tensor_coalesced(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::alltoall_base(at::Tensor& output, at::Tensor& input,
                                            std::vector<int64_t>& output_splits,
                                            std::vector<int64_t>& input_splits,
                                            const c10d::AllToAllOptions& opts) {
  return collectives::all_to_all_base(calls_, output, input, output_splits, input_splits, opts);
}

WorkPointer ProcessGroupQ7x2::alltoall(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllToAllOptions& opts) {
  return collectives::all_to_all(calls_, outputs, inputs, opts);
}

WorkPointer ProcessGroupQ7x2::barrier(const c10d::BarrierOptions& opts) {
  return collectives::barrier(calls_, opts);
}

void ProcessGroupQ7x2::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  collectives::monitored_barrier(calls_, opts, wait_all_ranks);
}

WorkPointer ProcessGroupQ7x2::send(Tensors& tensors, int destination, int tag) {
  return collectives::send(calls_, tensors, destination, tag);
}

WorkPointer ProcessGroupQ7x2::recv(Tensors& tensors, int source, int tag) {
  return collectives::receive(calls_, tensors, source, tag);
}

WorkPointer ProcessGroupQ7x2::recvAnysource(Tensors& tensors, int tag) {
  return collectives::receive_any(calls_, tensors, tag);
}

void ProcessGroupQ7x2::startCoalescing() {
  enter();
  calls_.coalescing().begin();
}

WorkPointer ProcessGroupQ7x2::endCoalescing() {
  enter();
  std::optional<Coalescing::Works> parts = calls_.coalescing().end();
  TORCH_CHECK(parts, "q7x2: endCoalescing() was called without startCoalescing()");
  auto work = c10::make_intrusive<WorkQ7x2>(
      runtime_, rank_, c10d::OpType::COALESCED, nullptr, ProfiledInputs(),
      std::vector<std::vector<at::Tensor>>(), calls_.sequence());
  work->start(std::move(*parts));
  return work;
}

}  // namespace q7x2
