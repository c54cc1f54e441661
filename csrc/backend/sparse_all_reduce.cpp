// The all-reduce of sparse COO tensors.
#include <utility>
#include <vector>

#include "backend/argument_checks.h"
#include "backend/collectives.h"
#include "backend/plain_tensors.h"
#include "base/digest.h"
#include "executor/sparse/row_source.h"
#include "executor/sparse/sparse_call.h"

namespace q7x2::collectives {
namespace {

/// The row number of each non-zero: its index among all combinations of sparse indices.
at::Tensor row_numbers(const at::Tensor& coalesced) {
  const at::Tensor indices = coalesced.indices();
  at::Tensor numbers = indices[0];
  for (int64_t d = 1; d < coalesced.sparse_dim(); ++d) {
    numbers = numbers * coalesced.size(d) + indices[d];
  }
  return numbers.contiguous();
}

at::Tensor indices_of(const at::Tensor& numbers, at::IntArrayRef sparse_sizes) {
  at::Tensor indices =
      at::empty({static_cast<int64_t>(sparse_sizes.size()), numbers.numel()}, at::kLong);
  at::Tensor rest = numbers;
  for (size_t d = sparse_sizes.size(); d-- > 0;) {
    at::Tensor its = indices[static_cast<int64_t>(d)];
    if (d == 0) {
      its.copy_(rest);
    } else {
      its.copy_(rest.remainder(sparse_sizes[d]));
      rest = rest.div(sparse_sizes[d], "floor");
    }
  }
  return indices;
}

/// Throws if the tensor is not valid. torch checks that only on request, and another rank would add
/// up rows that do not exist. `tensor`: on the CPU.
void check_sound(const at::Tensor& tensor) {
  check_storage(tensor._indices());
  check_storage(tensor._values());
  at::_validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), tensor.sizes());
}

uint64_t rows_of(const Complain& fn, const at::Tensor& tensor) {
  int64_t rows = 1;
  for (int64_t d = 0; d < tensor.sparse_dim(); ++d) {
    require(fn, !__builtin_mul_overflow(rows, tensor.size(d), &rows),
            c10::str("the sparse dimensions of shape ", tensor.sizes(),
                     " have more than 2**63 - 1 combinations of indices"));
  }
  return static_cast<uint64_t>(rows);
}

}  // namespace

// Each rank aggregates its share of the rows, and only rows that some rank has are sent
// (executor/sparse/sparse_all_reduce.h). First, coalescing adds up this rank's entries for each
// row.
WorkPointer sparse_all_reduce(GroupCalls& group, Tensors& tensors,
                              const c10d::AllreduceOptions& opts) {
  const Complain fn = group.enter("allreduce_sparse");
  c10d::assertNonEmpty(fn, tensors);
  TORCH_CHECK(tensors[0].is_sparse(),
              "ProcessGroupQ7x2::allreduce_sparse: expected a sparse COO "
              "tensor, got layout ",
              tensors[0].layout());
  c10d::assertLayoutMatch(fn, tensors);
  c10d::assertTypeAndSizesMatch(fn, tensors);
  TORCH_CHECK(opts.reduceOp == c10d::ReduceOp::SUM,
              "unsupported reduction operation (allreduce_sparse only works "
              "with ReduceOp.SUM)");
  require(fn, tensors[0].sparse_dim() > 0, "expected a tensor with a sparse dimension");
  const c10::AutoGradMode no_grad(false);
  at::Tensor input = tensors[0].detach().cpu();
  check_sound(input);
  for (size_t i = 1; i < tensors.size(); ++i) {
    const at::Tensor other = tensors[i].detach().cpu();
    check_sound(other);
    input = input + other;
  }
  const uint64_t rows = rows_of(fn, input);
  input = input.coalesce();
  const at::Tensor numbers = row_numbers(input);
  require(fn, numbers.diff().gt(0).all().item<bool>(),
          "the tensor says that it is coalesced, but its rows are not in "
          "ascending order");
  const at::Tensor values = input.values().contiguous();
  auto sizes = input.sizes().vec();
  const int64_t sparse_dim = input.sparse_dim();
  size_t row_bytes = values.element_size();
  for (int64_t d = sparse_dim; d < input.dim(); ++d) {
    row_bytes *= static_cast<size_t>(input.size(d));
  }
  Digest agreed;
  agreed.add_all(sizes);
  agreed.add(static_cast<uint64_t>(sparse_dim));

  CallBuilder call{group.size(),
                   c10d::OpType::_ALLREDUCE_SPARSE,
                   "q7x2:sparse_all_reduce",
                   tensors,
                   {tensors},
                   opts.timeout,
                   opts.asyncOp};
  const auto given = std::make_shared<ListedRows>(
      std::span(numbers.const_data_ptr<int64_t>(), static_cast<size_t>(numbers.numel())),
      static_cast<const std::byte*>(values.const_data_ptr()), row_bytes, rows, group.size());
  SparseCall sum{.layout = given->layout(),
                 .rows = given,
                 .ranks = group.size(),
                 .dtype = reducible_dtype(values),
                 .agreed = agreed.value(),
                 .bytes = values.nbytes() + numbers.nbytes(),
                 .title = c10::str("all_reduce of a sparse ", at::IntArrayRef(sizes)),
                 .plan = "sparse_rows"};
  call.buffers->then(
      [given, numbers, values, sizes, sparse_dim, outputs = tensors] {
        const auto count = static_cast<int64_t>(given->result_rows());
        at::Tensor result_numbers = at::empty({count}, at::kLong);
        std::vector<int64_t> shape(sizes.begin() + sparse_dim, sizes.end());
        shape.insert(shape.begin(), count);
        at::Tensor result_values = at::empty(shape, values.options());
        given->collect(result_numbers.mutable_data_ptr<int64_t>(),
                       static_cast<std::byte*>(result_values.mutable_data_ptr()));
        const at::Tensor result = at::_sparse_coo_tensor_unsafe(
            indices_of(result_numbers,
                       at::IntArrayRef(sizes.data(), static_cast<size_t>(sparse_dim))),
            result_values, sizes, values.options().layout(at::kSparse),
            /*is_coalesced=*/true);
        for (at::Tensor output : outputs) {
          output.copy_(result);
        }
      },
      tensors[0].device());
  return group.launch_sparse(std::move(call), {std::move(sum)}, {TaskMemory{}});
}

}  // namespace q7x2::collectives
