// PowerSGD's passes over a matrix. Included once for each instruction set, which defines
// Q7X2_LOW_RANK_KERNELS and Q7X2_ISA_NAME.
#include <cstring>

#include "kernels/low_rank_isa.h"

namespace q7x2 {
namespace {

constexpr size_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline size_t at_most(size_t count) {
  return count < kLanes ? count : kLanes;
}

/// `count` numbers at most, zeros behind them.
inline void load(Lanes& lanes, const float* from, size_t count) {
  if (count >= kLanes) {
    std::memcpy(&lanes, from, sizeof(lanes));
  } else {
    lanes = Lanes{};
    std::memcpy(&lanes, from, count * sizeof(float));
  }
}

inline void store(float* to, const Lanes& lanes, size_t count) {
  std::memcpy(to, &lanes, at_most(count) * sizeof(float));
}

inline float sum_of(const Lanes& lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof(sums));
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

/// One row times `kColumns` thin rows; the first ones' turn makes the row.
template <size_t kColumns, bool kMakes>
inline void project_row(const float* residual, const float* gradient, float share,
                        const float* basis, size_t m, float* sums, float* product) {
  Lanes totals[kColumns] = {};
  for (size_t j = 0; j < m; j += kLanes) {
    const size_t left = m - j;
    Lanes row;
    if constexpr (kMakes) {
      load(row, gradient + j, left);
      row *= share;
      if (residual != nullptr) {
        Lanes kept;
        load(kept, residual + j, left);
        row = kept + row;
      }
      store(sums + j, row, left);
    } else {
      load(row, sums + j, left);
    }
    for (size_t k = 0; k < kColumns; ++k) {
      Lanes column;
      load(column, basis + k * m + j, left);
      totals[k] += row * column;
    }
  }
  for (size_t k = 0; k < kColumns; ++k) product[k] = sum_of(totals[k]);
}

template <bool kMakes>
inline void project_columns(size_t columns, const float* residual, const float* gradient,
                            float share, const float* basis, size_t m, float* sums,
                            float* product) {
  switch (columns) {
    case 1:
      return project_row<1, kMakes>(residual, gradient, share, basis, m, sums, product);
    case 2:
      return project_row<2, kMakes>(residual, gradient, share, basis, m, sums, product);
    case 3:
      return project_row<3, kMakes>(residual, gradient, share, basis, m, sums, product);
    default:
      return project_row<4, kMakes>(residual, gradient, share, basis, m, sums, product);
  }
}

void accumulate(const float* residual, const float* gradient, float share, const float* basis,
                size_t n, size_t m, size_t rank, float* sums, float* product) {
  constexpr size_t kColumns = 4;
  for (size_t i = 0; i < n; ++i) {
    const float* const kept = residual == nullptr ? nullptr : residual + i * m;
    float* const out = product + i * rank;
    project_columns<true>(rank, kept, gradient + i * m, share, basis, m, sums + i * m, out);
    for (size_t k = kColumns; k < rank; k += kColumns) {
      project_columns<false>(rank - k, nullptr, nullptr, 0, basis + k * m, m, sums + i * m,
                             out + k);
    }
  }
}

void expand(const float* left, const float* right, float share, size_t n, size_t m, size_t rank,
            float* gradient, float* residual) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; j += kLanes) {
      const size_t rest = m - j;
      Lanes total = {};
      for (size_t k = 0; k < rank; ++k) {
        Lanes row;
        load(row, right + k * m + j, rest);
        total += row * left[i * rank + k];
      }
      store(gradient + i * m + j, total, rest);
      if (residual == nullptr) continue;
      Lanes kept;
      load(kept, residual + i * m + j, rest);
      kept -= total * share;
      store(residual + i * m + j, kept, rest);
    }
  }
}

}  // namespace

const LowRankKernels Q7X2_LOW_RANK_KERNELS = {Q7X2_ISA_NAME, accumulate, expand};

}  // namespace q7x2
