// The reduction kernels of every instruction set against a fold of one element at a time.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/reduce_isa.h"
#include "reduce_reference.h"

namespace q7x2 {

/// How GoogleTest shows the parameter of a failed test.
static void PrintTo(const ReduceIsa& isa, std::ostream* out) {
  *out << isa.name;
}
static void PrintTo(DType dtype, std::ostream* out) {
  *out << to_string(dtype);
}

namespace {

using test::Bool;
using test::kIsComplex;
using test::kIsSmallFloat;
using test::reference_element;
using test::same;
using test::with_type;

constexpr DType kReducible[] = {
    DType::kUInt8,          DType::kInt8,         DType::kUInt16,         DType::kInt16,
    DType::kUInt32,         DType::kInt32,        DType::kUInt64,         DType::kInt64,
    DType::kBool,           DType::kFloat16,      DType::kBFloat16,       DType::kFloat32,
    DType::kFloat64,        DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
    DType::kFloat8E5M2FNUZ, DType::kComplex64,    DType::kComplex128};

constexpr ReduceKind kKinds[] = {ReduceKind::kSum,   ReduceKind::kProduct, ReduceKind::kMin,
                                 ReduceKind::kMax,   ReduceKind::kBitAnd,  ReduceKind::kBitOr,
                                 ReduceKind::kBitXor};

bool reducible(DType dtype, ReduceKind kind, int divisor) {
  try {
    check_reducible(dtype, kind, divisor);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Random elements; among floats are zeros of both signs, subnormals, infinities and NaNs.
template <class T>
T random_element(std::mt19937_64& random) {
  const uint64_t bits = random();
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>(bits & 1)};
  } else if constexpr (kIsComplex<T>) {
    using Real = typename T::value_type;
    return {random_element<Real>(random), random_element<Real>(random)};
  } else if constexpr (kIsSmallFloat<T>) {
    if (bits % 2 == 0) return from_float<T>(random_element<float>(random));
    return {static_cast<typename T::Bits>(bits >> 32)};
  } else {
    using Limits = std::numeric_limits<T>;
    constexpr T kSpecials[] = {T{0},
                               -T{0},
                               Limits::infinity(),
                               -Limits::infinity(),
                               Limits::quiet_NaN(),
                               -Limits::quiet_NaN(),
                               Limits::denorm_min(),
                               -Limits::min(),
                               Limits::max()};
    if (bits % 32 == 0) return kSpecials[(bits >> 8) % std::size(kSpecials)];
    return static_cast<T>(std::normal_distribution<double>(0, 4)(random));
  }
}

/// A buffer of elements at an offset from an address aligned to 64 bytes, between guard bytes.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset) : bytes_(bytes), offset_(offset) {
    const size_t capacity = (kGuard + offset + bytes + kGuard + 63) / 64 * 64;
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, capacity));
    capacity_ = capacity;
    std::memset(memory_, kGuardByte, capacity);
  }
  ~Buffer() { std::free(memory_); }
  Buffer(Buffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        capacity_(other.capacity_),
        bytes_(other.bytes_),
        offset_(other.offset_) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer& operator=(Buffer&&) = delete;

  void* data() const { return memory_ + kGuard + offset_; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }

  bool guards_intact() const {
    for (size_t i = 0; i < capacity_; ++i) {
      const bool inside = i >= kGuard + offset_ && i < kGuard + offset_ + bytes_;
      if (!inside && memory_[i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kGuardByte = 0xA5;
  uint8_t* memory_ = nullptr;
  size_t capacity_ = 0;
  size_t bytes_;
  size_t offset_;
};

template <class T>
Buffer random_buffer(size_t count, size_t offset, std::mt19937_64& random) {
  Buffer buffer(count * sizeof(T), offset);
  for (size_t i = 0; i < count; ++i) buffer.as<T>()[i] = random_element<T>(random);
  return buffer;
}

struct Case {
  size_t source_count;
  size_t count;
  ReduceKind kind;
  int divisor;
  int alias;                    ///< the source that is also the destination, or -1
  std::vector<size_t> offsets;  ///< in elements, of the sources and last of the destination
};

/// Runs one case and returns the destination's bytes.
template <class T>
std::vector<uint8_t> run_case(const ReduceIsa& isa, DType dtype, const Case& c) {
  std::mt19937_64 random(c.source_count * 1009 + c.count);
  std::vector<Buffer> buffers;
  std::vector<const void*> sources;
  for (size_t k = 0; k < c.source_count; ++k) {
    buffers.push_back(random_buffer<T>(c.count, c.offsets[k] * sizeof(T), random));
    sources.push_back(buffers.back().data());
  }
  buffers.emplace_back(c.count * sizeof(T), c.offsets[c.source_count] * sizeof(T));
  const Buffer& dst = c.alias < 0 ? buffers.back() : buffers[static_cast<size_t>(c.alias)];

  std::vector<T> expected(c.count);
  for (size_t i = 0; i < c.count; ++i) {
    expected[i] = reference_element<T>(sources, i, c.kind, c.divisor);
  }
  isa.kernel(dst.data(), sources.data(), sources.size(), c.count, dtype, c.kind, c.divisor);
  for (size_t i = 0; i < c.count; ++i) {
    if (!same(dst.as<T>()[i], expected[i])) {
      ADD_FAILURE() << to_string(c.kind) << " of " << c.source_count << " sources, element " << i
                    << " of " << c.count << ", divisor " << c.divisor << ", alias " << c.alias;
      break;
    }
  }
  for (const Buffer& buffer : buffers) EXPECT_TRUE(buffer.guards_intact());
  const uint8_t* bytes = dst.as<uint8_t>();
  return {bytes, bytes + c.count * sizeof(T)};
}

class ReduceKernelTest : public testing::TestWithParam<std::tuple<ReduceIsa, DType>> {
 protected:
  /// Runs `check(kind, divisor)` for all that the element type can do.
  void for_each_operation(const std::function<void(ReduceKind, int)>& check) const {
    for (const ReduceKind kind : kKinds) {
      for (const int divisor : {1, 3}) {
        if (reducible(dtype_, kind, divisor)) check(kind, divisor);
      }
    }
  }

  void run(const Case& c) const {
    with_type(dtype_, [&](auto element) { run_case<decltype(element)>(isa_, dtype_, c); });
  }

  const ReduceIsa isa_ = std::get<0>(GetParam());
  const DType dtype_ = std::get<1>(GetParam());
};

TEST_P(ReduceKernelTest, FoldsLikeTheReference) {
  for_each_operation([&](ReduceKind kind, int divisor) {
    for (const size_t count : {0, 1, 7, 63, 64, 1000, 4097}) {
      for (size_t sources = 1; sources <= 5; ++sources) {
        for (int alias = -1; alias < static_cast<int>(sources); ++alias) {
          run({sources, count, kind, divisor, alias, std::vector<size_t>(sources + 1, 0)});
        }
      }
    }
  });
}

TEST_P(ReduceKernelTest, TakesAnyElementAlignment) {
  for_each_operation([&](ReduceKind kind, int divisor) {
    for (const size_t shift : {1, 3, 5, 15}) {
      for (const size_t sources : {1, 2, 3}) {
        std::vector<size_t> offsets;
        for (size_t k = 0; k <= sources; ++k) offsets.push_back((k + 1) * shift % 16);
        run({sources, 257, kind, divisor, -1, offsets});
      }
    }
  });
}

std::vector<ReduceIsa> all_isas() {
  const auto isas = reduce_isas();
  return {isas.begin(), isas.end()};
}

INSTANTIATE_TEST_SUITE_P(All, ReduceKernelTest,
                         testing::Combine(testing::ValuesIn(all_isas()),
                                          testing::ValuesIn(kReducible)),
                         [](const auto& instance) {
                           return std::string(std::get<0>(instance.param).name) + "_" +
                                  to_string(std::get<1>(instance.param));
                         });

/// The results of all instruction sets, bit by bit where they are no NaN.
TEST(ReduceIsaTest, AllGiveTheSameBits) {
  const std::vector<ReduceIsa> isas = all_isas();
  for (const DType dtype : kReducible) {
    for (const ReduceKind kind : kKinds) {
      for (const int divisor : {1, 7}) {
        if (!reducible(dtype, kind, divisor)) continue;
        with_type(dtype, [&](auto element) {
          using T = decltype(element);
          for (const size_t sources : {2, 4}) {
            const Case c = {sources, 3001, kind, divisor, 0, std::vector<size_t>(sources + 1, 0)};
            const std::vector<uint8_t> best = run_case<T>(isas.front(), dtype, c);
            for (size_t k = 1; k < isas.size(); ++k) {
              const std::vector<uint8_t> other = run_case<T>(isas[k], dtype, c);
              for (size_t i = 0; i < c.count; ++i) {
                T left;
                T right;
                std::memcpy(&left, best.data() + i * sizeof(T), sizeof(T));
                std::memcpy(&right, other.data() + i * sizeof(T), sizeof(T));
                ASSERT_TRUE(same(left, right))
                    << to_string(dtype) << ' ' << to_string(kind) << ": " << isas.front().name
                    << " and " << isas[k].name << " differ in element " << i;
              }
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace q7x2
