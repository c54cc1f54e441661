// The all-reduce of sparse COO tensors.
#include <algorithm>

#include "backend/argument_checks.h"
#include "backend/process_group.h"

namespace q7x2 {

// The sum of COO tensors: everybody gathers everybody's indices and values, and adds them in rank
// order. Two rounds, because the numbers of non-zeros differ; the second cannot start before the
// first is there, so the call blocks for it.
c10::intrusive_ptr<c10d::Work> ProcessGroupQ7x2::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const Complain fn = enter("allreduce_sparse");
  c10d::assertNonEmpty(fn, tensors);
  TORCH_CHECK(tensors[0].is_sparse(),
              "ProcessGroupQ7x2::allreduce_sparse: expected a sparse COO tensor, got layout ",
              tensors[0].layout());
  c10d::assertLayoutMatch(fn, tensors);
  c10d::assertTypeAndSizesMatch(fn, tensors);
  TORCH_CHECK(opts.reduceOp == c10d::ReduceOp::SUM,
              "unsupported reduction operation (allreduce_sparse only works with ReduceOp.SUM)");
  const c10::AutoGradMode no_grad(false);
  at::Tensor input = tensors[0].detach().cpu();
  for (size_t i = 1; i < tensors.size(); ++i) {
    input = input + tensors[i].detach().cpu();
  }
  input = input.coalesce();
  const at::Tensor indices = input.indices().contiguous();
  const at::Tensor values = input.values().contiguous();

  // Dimensions and sizes of everybody, so that a disagreement is an error and not a wrong sum.
  constexpr int64_t kMaxDims = 64;
  TORCH_CHECK(input.dim() <= kMaxDims, "ProcessGroupQ7x2::allreduce_sparse: at most ", kMaxDims,
              " dimensions, got ", input.dim());
  at::Tensor metadata = at::zeros({kMaxDims + 4}, at::kLong);
  auto* fields = metadata.mutable_data_ptr<int64_t>();
  fields[0] = input.sparse_dim();
  fields[1] = input.dense_dim();
  fields[2] = input._nnz();
  fields[3] = static_cast<int64_t>(input.scalar_type());
  std::copy(input.sizes().begin(), input.sizes().end(), fields + 4);
  at::Tensor all_metadata = at::empty({size_, metadata.numel()}, at::kLong);
  c10d::AllgatherOptions gather_opts;
  gather_opts.timeout = opts.timeout;
  gather_opts.asyncOp = false;
  _allgather_base(all_metadata, metadata, gather_opts)->wait();

  int64_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const auto* theirs = all_metadata[rank].const_data_ptr<int64_t>();
    TORCH_CHECK(theirs[0] == fields[0] && theirs[1] == fields[1] && theirs[3] == fields[3] &&
                    std::equal(fields + 4, fields + 4 + kMaxDims, theirs + 4),
                "ProcessGroupQ7x2::allreduce_sparse: rank ", rank,
                " has another shape or dtype than rank ", rank_,
                ": sparse dimensions, dense dimensions, sizes and dtype must be equal");
    longest = std::max(longest, theirs[2]);
  }

  // Padded to the longest, which keeps it one collective for each.
  const auto padded = [&](const at::Tensor& part, int64_t dim) {
    auto sizes = part.sizes().vec();
    sizes[static_cast<size_t>(dim)] = longest;
    at::Tensor full = at::zeros(sizes, part.options());
    full.narrow(dim, 0, part.size(dim)).copy_(part);
    return full;
  };
  const at::Tensor my_indices = padded(indices, 1);
  const at::Tensor my_values = padded(values, 0);
  auto all_indices = std::make_shared<Tensors>();
  auto all_values = std::make_shared<Tensors>();
  Launch call{c10d::OpType::_ALLREDUCE_SPARSE,
              "q7x2:sparse_all_reduce",
              tensors,
              {tensors},
              opts.timeout,
              opts.asyncOp};
  for (int rank = 0; rank < size_; ++rank) {
    all_indices->push_back(at::empty_like(my_indices));
    all_values->push_back(at::empty_like(my_values));
  }
  add_all_gather(call, my_indices, *all_indices);
  add_all_gather(call, my_values, *all_values);
  call.buffers->then(
      [=, outputs = tensors, sizes = input.sizes().vec(), size = size_] {
        Tensors kept_indices;
        Tensors kept_values;
        for (int rank = 0; rank < size; ++rank) {
          const int64_t count = all_metadata[rank][2].item<int64_t>();
          const auto r = static_cast<size_t>(rank);
          kept_indices.push_back((*all_indices)[r].narrow(1, 0, count));
          kept_values.push_back((*all_values)[r].narrow(0, 0, count));
        }
        const at::Tensor sum =
            at::sparse_coo_tensor(at::cat(kept_indices, 1), at::cat(kept_values, 0), sizes,
                                  kept_values[0].options().layout(at::kSparse))
                .coalesce();
        for (at::Tensor output : outputs) {
          output.copy_(sum);
        }
      },
      tensors[0].device());
  return launch(std::move(call));
}

}  // namespace q7x2
