// PowerSGD's passes over a matrix. Included once per instruction set, which defines
// Q7X2_LOW_RANK_KERNELS and Q7X2_ISA_NAME.
#include <cstring>
#include <type_traits>

#include "kernels/cpu/low_rank.h"
#include "kernels/cpu/vector_width.h"

namespace q7x2 {
namespace {

constexpr size_t kLanes = 16;

/// kLanes numbers, in as many registers as needed.
struct Lanes {
  using Register = float __attribute__((vector_size(kWidth * sizeof(float))));
  static constexpr size_t kRegisters = kLanes / kWidth;

  Register registers[kRegisters];

  Lanes& operator+=(const Lanes& other) {
    for (size_t i = 0; i < kRegisters; ++i) registers[i] += other.registers[i];
    return *this;
  }
  Lanes& operator-=(const Lanes& other) {
    for (size_t i = 0; i < kRegisters; ++i) registers[i] -= other.registers[i];
    return *this;
  }
  Lanes& operator*=(const Lanes& other) {
    for (size_t i = 0; i < kRegisters; ++i) registers[i] *= other.registers[i];
    return *this;
  }
  Lanes& operator*=(float factor) {
    for (size_t i = 0; i < kRegisters; ++i) registers[i] *= factor;
    return *this;
  }
};

/// All lanes, or the first few at the end of a row. These are two types because vectors stay in
/// registers only if their size in memory is a constant.
struct Whole {};
struct Tail {
  size_t count;
};

/// Calls f(j, Whole) or f(j, Tail) for the lanes of a row from column j.
template <typename F>
inline void for_lanes(size_t m, F&& f) {
  size_t j = 0;
  for (; j + kLanes <= m; j += kLanes) f(j, Whole());
  if (j < m) f(j, Tail{m - j});
}

inline void load(Lanes& lanes, const float* from, Whole) {
  for (Lanes::Register& each : lanes.registers) {
    std::memcpy(&each, from, sizeof(each));
    from += kWidth;
  }
}
/// Sets the other lanes to zero.
inline void load(Lanes& lanes, const float* from, Tail tail) {
  float values[kLanes] = {};
  std::memcpy(values, from, tail.count * sizeof(float));
  load(lanes, values, Whole());
}

inline void store(float* to, const Lanes& lanes, Whole) {
  for (const Lanes::Register& each : lanes.registers) {
    std::memcpy(to, &each, sizeof(each));
    to += kWidth;
  }
}
inline void store(float* to, const Lanes& lanes, Tail tail) {
  float values[kLanes];
  store(values, lanes, Whole());
  std::memcpy(to, values, tail.count * sizeof(float));
}

inline float sum_of(const Lanes& lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof(sums));
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

/// The lanes from column `right` of a row of left right. `kTerms`: a lower bound of `rank`.
template <size_t kTerms, typename Extent>
inline void multiply(const float* left, const float* right, size_t m, size_t rank, Extent extent,
                     Lanes& total) {
  total = Lanes{};
  Lanes row;
  for (size_t k = 0; k < kTerms; ++k) {
    load(row, right + k * m, extent);
    row *= left[k];
    total += row;
  }
  for (size_t k = kTerms; k < rank; ++k) {
    load(row, right + k * m, extent);
    row *= left[k];
    total += row;
  }
}

/// One row of `sums`, and its products with the first `kTerms` rows of `basis`.
template <size_t kTerms, bool kProjects>
inline void accumulate_row(const OwedMatrix& owed, const float* gradient, float share,
                           const float* basis, size_t m, size_t rank, float* sums, float* product) {
  Lanes totals[kTerms] = {};
  for_lanes(m, [&](size_t j, auto extent) {
    Lanes row = {};
    if (owed.matrix != nullptr) {
      load(row, owed.matrix + j, extent);
      if (owed.left != nullptr) {
        Lanes paid;
        multiply<kTerms>(owed.left, owed.right + j, m, rank, extent, paid);
        row -= paid;
      }
    }
    if (gradient != nullptr) {
      Lanes added;
      load(added, gradient + j, extent);
      added *= share;
      row += added;
    }
    store(sums + j, row, extent);
    for (size_t k = 0; kProjects && k < kTerms; ++k) {
      Lanes column;
      load(column, basis + k * m + j, extent);
      column *= row;
      totals[k] += column;
    }
  });
  for (size_t k = 0; kProjects && k < kTerms; ++k) product[k] = sum_of(totals[k]);
}

/// The products of a row with the other rows of `basis`.
inline void project_row(const float* row, const float* basis, size_t m, size_t rank,
                        float* product) {
  for (size_t k = 0; k < rank; ++k) {
    Lanes total = {};
    for_lanes(m, [&](size_t j, auto extent) {
      Lanes values;
      Lanes column;
      load(values, row + j, extent);
      load(column, basis + k * m + j, extent);
      values *= column;
      total += values;
    });
    product[k] = sum_of(total);
  }
}

template <size_t kTerms>
void accumulate_rows(const OwedMatrix& owed, const float* gradient, float share, const float* basis,
                     size_t n, size_t m, size_t rank, float* sums, float* product) {
  for (size_t i = 0; i < n; ++i) {
    const OwedMatrix kept{owed.matrix == nullptr ? nullptr : owed.matrix + i * m,
                          owed.left == nullptr ? nullptr : owed.left + i * rank, owed.right};
    const float* const row = gradient == nullptr ? nullptr : gradient + i * m;
    float* const out = sums + i * m;
    if (basis == nullptr) {
      accumulate_row<kTerms, false>(kept, row, share, nullptr, m, rank, out, nullptr);
      continue;
    }
    float* const products = product + i * rank;
    accumulate_row<kTerms, true>(kept, row, share, basis, m, rank, out, products);
    project_row(out, basis + kTerms * m, m, rank - kTerms, products + kTerms);
  }
}

/// Calls f with the number of terms that are unrolled for this rank.
template <typename F>
inline void with_terms(size_t rank, F&& f) {
  switch (rank) {
    case 1:
      return f(std::integral_constant<size_t, 1>());
    case 2:
      return f(std::integral_constant<size_t, 2>());
    case 3:
      return f(std::integral_constant<size_t, 3>());
    default:
      return f(std::integral_constant<size_t, 4>());
  }
}

void accumulate(const OwedMatrix& owed, const float* gradient, float share, const float* basis,
                size_t n, size_t m, size_t rank, float* sums, float* product) {
  with_terms(rank, [&](auto terms) {
    accumulate_rows<terms()>(owed, gradient, share, basis, n, m, rank, sums, product);
  });
}

/// Adds `kRows` rows of the matrix to the products.
template <size_t kRows>
inline void project_rows(const float* left, const float* matrix, size_t m, size_t columns,
                         size_t rank, float* product) {
  for_lanes(columns, [&](size_t j, auto extent) {
    Lanes rows[kRows];
    for (size_t i = 0; i < kRows; ++i) load(rows[i], matrix + i * m + j, extent);
    for (size_t k = 0; k < rank; ++k) {
      Lanes total;
      load(total, product + k * m + j, extent);
      for (size_t i = 0; i < kRows; ++i) {
        Lanes terms = rows[i];
        terms *= left[i * rank + k];
        total += terms;
      }
      store(product + k * m + j, total, extent);
    }
  });
}

void project(const float* left, const float* matrix, size_t n, size_t m, size_t columns,
             size_t rank, float* product) {
  constexpr size_t kRows = 4;
  for (size_t k = 0; k < rank; ++k) std::memset(product + k * m, 0, columns * sizeof(float));
  size_t i = 0;
  for (; i + kRows <= n; i += kRows) {
    project_rows<kRows>(left + i * rank, matrix + i * m, m, columns, rank, product);
  }
  for (; i < n; ++i) {
    project_rows<1>(left + i * rank, matrix + i * m, m, columns, rank, product);
  }
}

void expand(const float* left, const float* right, size_t n, size_t m, size_t rank,
            float* product) {
  with_terms(rank, [&](auto terms) {
    for (size_t i = 0; i < n; ++i) {
      for_lanes(m, [&](size_t j, auto extent) {
        Lanes row;
        multiply<terms()>(left + i * rank, right + j, m, rank, extent, row);
        store(product + i * m + j, row, extent);
      });
    }
  });
}

}  // namespace

const LowRankKernels Q7X2_LOW_RANK_KERNELS = {Q7X2_ISA_NAME, accumulate, project, expand};

}  // namespace q7x2
