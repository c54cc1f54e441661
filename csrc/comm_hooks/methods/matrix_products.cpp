#include "comm_hooks/methods/matrix_products.h"

#include <algorithm>

#include <ATen/Parallel.h>

#include "kernels/cpu/low_rank.h"

namespace q7x2 {
namespace {

size_t to_size(int64_t count) {
  return static_cast<size_t>(count);
}

/// Whether kernels/cpu/low_rank.h supports the tensor.
bool is_fast(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat;
}

bool are_fast(const at::Tensor& matrices, const std::vector<at::Tensor>& others) {
  return is_fast(matrices) && std::ranges::all_of(others, [](const at::Tensor& other) {
           return !other.defined() || is_fast(other);
         });
}

/// Calls f(begin, end) for ranges of n rows (or columns) of m elements, in as many threads as the
/// hook has.
template <typename F>
void for_blocks(int64_t n, int64_t m, F&& f) {
  constexpr int64_t kGrain = 1 << 16;  // elements
  at::parallel_for(0, n, std::max<int64_t>(1, kGrain / m), f);
}

struct Accumulate {
  const float* gradient = nullptr;
  float share = 0;
  const float* basis = nullptr;
  float* sums = nullptr;
  float* product = nullptr;
};

/// Adds the residual of a member and its share of a gradient; see kernels/cpu/low_rank.h.
void accumulate(const Stack& stack, int64_t row, const Accumulate& what) {
  const auto& [n, m, rank] = stack.shape;
  for_blocks(n, m, [&, n = n, m = m, rank = rank](int64_t begin, int64_t end) {
    OwedMatrix owed;
    if (stack.owed.defined()) {
      owed.matrix = stack.owed.const_data_ptr<float>() + (row * n + begin) * m;
    }
    if (stack.paid.left.defined()) {
      owed.left = stack.paid.left.const_data_ptr<float>() + (row * n + begin) * rank;
      owed.right = stack.paid.right.const_data_ptr<float>() + row * rank * m;
    }
    low_rank_kernels().accumulate(
        owed, what.gradient == nullptr ? nullptr : what.gradient + begin * m, what.share,
        what.basis, to_size(end - begin), to_size(m), to_size(rank), what.sums + begin * m,
        what.product == nullptr ? nullptr : what.product + begin * rank);
  });
}

}  // namespace

void write_down(Stack& stack) {
  if (!stack.paid.left.defined()) return;
  for (int64_t row = 0; row < stack.count(); ++row) {
    float* const owed = stack.owed.select(0, row).mutable_data_ptr<float>();
    accumulate(stack, row, {.sums = owed});
  }
  stack.paid = {};
}

void load_and_multiply(Stack& stack, const std::vector<at::Tensor>& gradients, double share,
                       bool left, at::Tensor& product) {
  const auto& [n, m, rank] = stack.shape;
  const bool fast = are_fast(stack.next_owed, gradients);
  if (!fast) write_down(stack);
  at::Tensor bases;  // if M Q is computed in the pass that computes M
  if (fast && left) bases = stack.basis.mT().contiguous();
  for (int64_t row = 0; row < stack.count(); ++row) {
    const at::Tensor& gradient = gradients[to_size(row)];
    at::Tensor target = stack.next_owed.select(0, row);
    if (!gradient.defined()) {
      target.zero_();
      if (bases.defined()) product.select(0, row).zero_();
    } else if (fast) {
      Accumulate what{.gradient = gradient.const_data_ptr<float>(),
                      .share = static_cast<float>(share),
                      .sums = target.mutable_data_ptr<float>()};
      if (bases.defined()) {
        what.basis = bases.const_data_ptr<float>() + row * rank * m;
        what.product = product.select(0, row).mutable_data_ptr<float>();
      }
      accumulate(stack, row, what);
    } else if (stack.owed.defined()) {
      at::add_out(target, stack.owed.select(0, row), gradient, share);
    } else {
      at::mul_out(target, gradient, at::scalar_tensor(share, target.scalar_type()));
    }
  }
  if (stack.is_in_place()) stack.paid = {};  // M itself is the residual
  if (!bases.defined()) multiply(stack.next_owed, stack.basis, left, product);
}

void multiply(const at::Tensor& matrices, const at::Tensor& basis, bool left, at::Tensor& product) {
  if (!left && is_fast(matrices)) {
    const at::Tensor thin = basis.contiguous();
    const at::Tensor rows = product.mT();
    const int64_t n = matrices.size(1), m = matrices.size(2), rank = thin.size(2);
    for (int64_t i = 0; i < matrices.size(0); ++i) {
      const float* const p = thin.const_data_ptr<float>() + i * n * rank;
      const float* const matrix = matrices.const_data_ptr<float>() + i * n * m;
      float* const out = rows.select(0, i).mutable_data_ptr<float>();
      for_blocks(m, n, [&](int64_t begin, int64_t end) {
        low_rank_kernels().project(p, matrix + begin, to_size(n), to_size(m), to_size(end - begin),
                                   to_size(rank), out + begin);
      });
    }
    return;
  }
  // Transposed, as a few long rows: BLAS libraries are up to ten times slower with a few columns.
  const at::Tensor rows = basis.mT().contiguous();
  product.copy_(at::bmm(rows, left ? matrices.mT() : matrices).mT());
}

void expand(Stack& stack, const Factors& sums, const Factors& own,
            const std::vector<at::Tensor>& means, double mean_share) {
  const auto& [n, m, rank] = stack.shape;
  const bool fast = are_fast(sums.left, means);
  for (int64_t row = 0; row < stack.count(); ++row) {
    at::Tensor mean = means[to_size(row)];
    const at::Tensor left = sums.left.select(0, row);
    const at::Tensor right = sums.right.select(0, row);
    if (!fast) {
      const at::Tensor product = at::mm(left, right);
      mean.copy_(product);
      if (!stack.owed.defined()) continue;
      at::Tensor residual = stack.next_owed.select(0, row);
      residual.addmm_(own.left.select(0, row), own.right.select(0, row), 1, -1);
      if (mean.scalar_type() != product.scalar_type()) residual.add_(product - mean, mean_share);
      continue;
    }
    float* const out = mean.mutable_data_ptr<float>();
    for_blocks(n, m, [&, m = m, rank = rank](int64_t begin, int64_t end) {
      low_rank_kernels().expand(left.const_data_ptr<float>() + begin * rank,
                                right.const_data_ptr<float>(), to_size(end - begin), to_size(m),
                                to_size(rank), out + begin * m);
    });
  }
  if (fast && stack.owed.defined()) stack.next_paid = own;
}

}  // namespace q7x2
