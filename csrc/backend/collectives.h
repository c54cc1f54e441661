// The collectives and point-to-point messages of c10d. Each checks its arguments, and describes its
// calls to the executor.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/coded_options.h"
#include "backend/group_calls.h"
#include "backend/torch_compat.h"

namespace q7x2::collectives {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// moving_collectives.cpp: collectives that only move bytes.

WorkPointer broadcast(GroupCalls& group, Tensors& tensors, const c10d::BroadcastOptions& opts);
WorkPointer all_gather(GroupCalls& group, std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& opts);
WorkPointer all_gather_base(GroupCalls& group, at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& opts);
WorkPointer all_gather_coalesced(GroupCalls& group, std::vector<Tensors>& output_lists,
                                 Tensors& inputs, const c10d::AllgatherOptions& opts);
WorkPointer all_gather_into_tensor_coalesced(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts);
WorkPointer gather(GroupCalls& group, std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::GatherOptions& opts);
WorkPointer scatter(GroupCalls& group, Tensors& outputs, std::vector<Tensors>& inputs,
                    const c10d::ScatterOptions& opts);
WorkPointer all_to_all_base(GroupCalls& group, at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& opts);
WorkPointer all_to_all(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& opts);

// reducing_collectives.cpp

WorkPointer all_reduce(GroupCalls& group, Tensors& tensors, const c10d::AllreduceOptions& opts);
WorkPointer all_reduce_coalesced(GroupCalls& group, Tensors& tensors,
                                 const c10d::AllreduceCoalescedOptions& opts);
WorkPointer reduce(GroupCalls& group, Tensors& tensors, const c10d::ReduceOptions& opts);
WorkPointer reduce_scatter(GroupCalls& group, Tensors& outputs, std::vector<Tensors>& inputs,
                           const c10d::ReduceScatterOptions& opts);
WorkPointer reduce_scatter_base(GroupCalls& group, at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& opts);
WorkPointer reduce_scatter_tensor_coalesced(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                                            const c10d::ReduceScatterOptions& opts);

// sparse_all_reduce.cpp: for sparse COO tensors. block_all_reduce.cpp: for dense tensors, without
// sending blocks of zeros (executor/sparse/sparse_all_reduce.h).

WorkPointer sparse_all_reduce(GroupCalls& group, Tensors& tensors,
                              const c10d::AllreduceOptions& opts);
WorkPointer block_all_reduce(GroupCalls& group, Tensors& tensors, const CodedOptions& opts);

// coded_collectives.cpp: compressed collectives.

/// In place. Each tensor is reduced separately.
WorkPointer coded_all_reduce(GroupCalls& group, Tensors& tensors, const CodedOptions& opts);
/// Each input has world-size times as many elements as its output.
WorkPointer coded_reduce_scatter(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                                 const CodedOptions& opts);
/// Each output has world-size times as many elements as its input.
WorkPointer coded_all_gather(GroupCalls& group, Tensors& outputs, Tensors& inputs,
                             const CodedOptions& opts);

// integer_sums.cpp: a reduction with a codec that adds integers. It is an all-reduce if outputs and
// inputs are the same tensors, otherwise a reduce-scatter.

WorkPointer add_integers(GroupCalls& group, CallBuilder call, const Tensors& outputs,
                         const Tensors& inputs, const CodedOptions& opts, uint64_t step);

// barriers.cpp

WorkPointer barrier(GroupCalls& group, const c10d::BarrierOptions& opts);
void monitored_barrier(GroupCalls& group, const c10d::BarrierOptions& opts, bool wait_all_ranks);

// messages.cpp

WorkPointer send(GroupCalls& group, Tensors& tensors, int destination, int tag);
WorkPointer receive(GroupCalls& group, Tensors& tensors, int source, int tag);
WorkPointer receive_any(GroupCalls& group, Tensors& tensors, int tag);

}  // namespace q7x2::collectives
