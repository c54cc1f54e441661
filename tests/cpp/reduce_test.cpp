// The reduction kernels of every instruction set against a fold of one element at a time.
#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
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
#include "kernels/elements.h"
#include "kernels/reduce_isa.h"

namespace q7x2 {

/// How GoogleTest shows the parameter of a failed test.
static void PrintTo(const ReduceIsa& isa, std::ostream* out) {
  *out << isa.name;
}
static void PrintTo(DType dtype, std::ostream* out) {
  *out << to_string(dtype);
}

namespace {

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

struct Bool {
  uint8_t value;
};

/// Calls `visit` with a value of the C++ type of `dtype`.
template <class Visit>
auto with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kUInt8:
      return visit(uint8_t{});
    case DType::kInt8:
      return visit(int8_t{});
    case DType::kUInt16:
      return visit(uint16_t{});
    case DType::kInt16:
      return visit(int16_t{});
    case DType::kUInt32:
      return visit(uint32_t{});
    case DType::kInt32:
      return visit(int32_t{});
    case DType::kUInt64:
      return visit(uint64_t{});
    case DType::kInt64:
      return visit(int64_t{});
    case DType::kBool:
      return visit(Bool{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kFloat8E4M3FN:
      return visit(Float8E4M3FN{});
    case DType::kFloat8E4M3FNUZ:
      return visit(Float8E4M3FNUZ{});
    case DType::kFloat8E5M2:
      return visit(Float8E5M2{});
    case DType::kFloat8E5M2FNUZ:
      return visit(Float8E5M2FNUZ{});
    case DType::kComplex64:
      return visit(std::complex<float>{});
    case DType::kComplex128:
      return visit(std::complex<double>{});
    case DType::kBytes:
      break;
  }
  throw Error(ErrorCode::kInternal, "no element type");
}

template <class T>
constexpr bool kIsComplex = false;
template <class Real>
constexpr bool kIsComplex<std::complex<Real>> = true;
template <class T>
constexpr bool kIsSmallFloat = std::is_class_v<T> && !kIsComplex<T> && !std::is_same_v<T, Bool>;

/// The fold of one element, as the contract of `reduce` words it.
template <class V>
V fold_one(V a, V b, ReduceKind kind) {
  if constexpr (kIsComplex<V>) {
    if (kind == ReduceKind::kSum) return a + b;
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_same_v<V, Bool>) {
    const bool left = a.value != 0;
    const bool right = b.value != 0;
    switch (kind) {
      case ReduceKind::kSum:
      case ReduceKind::kMax:
      case ReduceKind::kBitOr:
        return {left || right};
      case ReduceKind::kBitXor:
        return {left != right};
      default:
        return {left && right};
    }
  } else if constexpr (std::is_floating_point_v<V>) {
    switch (kind) {
      case ReduceKind::kSum:
        return a + b;
      case ReduceKind::kProduct:
        return a * b;
      default:
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<V>::quiet_NaN();
        return kind == ReduceKind::kMin ? std::min(a, b) : std::max(a, b);
    }
  } else {
    const uint64_t left = static_cast<uint64_t>(a);
    const uint64_t right = static_cast<uint64_t>(b);
    switch (kind) {
      case ReduceKind::kSum:
        return static_cast<V>(left + right);
      case ReduceKind::kProduct:
        return static_cast<V>(left * right);
      case ReduceKind::kMin:
        return std::min(a, b);
      case ReduceKind::kMax:
        return std::max(a, b);
      case ReduceKind::kBitAnd:
        return static_cast<V>(left & right);
      case ReduceKind::kBitOr:
        return static_cast<V>(left | right);
      case ReduceKind::kBitXor:
        return static_cast<V>(left ^ right);
    }
    return V{};
  }
}

template <class V>
V mean_one(V value, int divisor) {
  if constexpr (std::is_same_v<V, Bool>) {
    return value;
  } else if constexpr (kIsComplex<V>) {
    const auto real_divisor = static_cast<typename V::value_type>(divisor);
    return {value.real() / real_divisor, value.imag() / real_divisor};
  } else if constexpr (std::is_same_v<V, uint64_t>) {
    return value / static_cast<uint64_t>(divisor);
  } else if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<int64_t>(value) / divisor);
  } else {
    return value / static_cast<V>(divisor);
  }
}

template <class T>
T reference_element(const std::vector<const void*>& sources, size_t index, ReduceKind kind,
                    int divisor) {
  const auto at = [&](size_t source) { return static_cast<const T*>(sources[source])[index]; };
  if constexpr (kIsSmallFloat<T>) {
    float folded = to_float(at(0));
    for (size_t k = 1; k < sources.size(); ++k) folded = fold_one(folded, to_float(at(k)), kind);
    return from_float<T>(mean_one(folded, divisor));
  } else {
    T folded = at(0);
    for (size_t k = 1; k < sources.size(); ++k) folded = fold_one(folded, at(k), kind);
    return mean_one(folded, divisor);
  }
}

/// Equal bits, or both NaN: which NaN an addition of two returns is up to the processor.
template <class T>
bool same(T a, T b) {
  if constexpr (kIsSmallFloat<T>) {
    return a.bits == b.bits || (std::isnan(to_float(a)) && std::isnan(to_float(b)));
  } else if constexpr (kIsComplex<T>) {
    return same(a.real(), b.real()) && same(a.imag(), b.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  } else {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
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

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(ReduceIsaTest, IsChosenByName) {
  EXPECT_STREQ(select_reduce_isa(nullptr).name, reduce_isas().front().name);
  EXPECT_STREQ(select_reduce_isa("").name, reduce_isas().front().name);
  for (const ReduceIsa& isa : reduce_isas()) {
    EXPECT_STREQ(select_reduce_isa(isa.name).name, isa.name);
  }
  EXPECT_STREQ(reduce_isas().back().name, "baseline");
  EXPECT_EQ(message_of([] { select_reduce_isa("sse9"); }),
            "Q7X2_ISA=sse9: expected baseline, avx2 or avx512");
}

TEST(ReduceIsaTest, FollowsTheEnvironment) {
  EXPECT_STREQ(reduce_isa(), select_reduce_isa(std::getenv("Q7X2_ISA")).name);
}

template <class T>
T reduce_values(DType dtype, ReduceKind kind, const std::vector<T>& values, int divisor = 1) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  T result;
  reduce(&result, sources, 1, dtype, kind, divisor);
  return result;
}

template <class T>
float reduce_small(DType dtype, ReduceKind kind, const std::vector<float>& values,
                   int divisor = 1) {
  std::vector<T> elements;
  for (const float value : values) elements.push_back(from_float<T>(value));
  return to_float(reduce_values(dtype, kind, elements, divisor));
}

TEST(ReduceTest, FoldsFromLeftToRight) {
  const auto sum = [](std::vector<float> values) {
    return reduce_values<float>(DType::kFloat32, ReduceKind::kSum, values);
  };
  EXPECT_EQ(sum({1e8f, -1e8f, 1}), 1);
  EXPECT_EQ(sum({1, 1e8f, -1e8f}), 0);
}

TEST(ReduceTest, RoundsSmallFloatsOnce) {
  EXPECT_EQ(reduce_small<Float16>(DType::kFloat16, ReduceKind::kSum, {2048, 1, 1}), 2050);
  EXPECT_EQ(reduce_small<BFloat16>(DType::kBFloat16, ReduceKind::kSum, {256, 1, 1}), 258);
  EXPECT_EQ(reduce_small<Float8E4M3FN>(DType::kFloat8E4M3FN, ReduceKind::kSum, {16, 1, 1}), 18);
  EXPECT_EQ(reduce_small<Float8E5M2>(DType::kFloat8E5M2, ReduceKind::kSum, {8, 1, 1}), 10);
}

TEST(ReduceTest, DividesBeforeRounding) {
  EXPECT_EQ(reduce_small<Float16>(DType::kFloat16, ReduceKind::kSum, {65504, 65504}, 2), 65504);
  EXPECT_EQ(reduce_small<Float8E4M3FN>(DType::kFloat8E4M3FN, ReduceKind::kSum, {448, 448}, 2), 448);
}

TEST(ReduceTest, WrapsIntegers) {
  EXPECT_EQ(reduce_values<uint8_t>(DType::kUInt8, ReduceKind::kSum, {200, 100}), 44);
  EXPECT_EQ(reduce_values<int8_t>(DType::kInt8, ReduceKind::kSum, {127, 1}), -128);
  EXPECT_EQ(reduce_values<uint16_t>(DType::kUInt16, ReduceKind::kProduct, {65535, 65535}), 1);
  EXPECT_EQ(reduce_values<int32_t>(DType::kInt32, ReduceKind::kProduct, {1 << 30, 4}), 0);
  const int64_t largest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduce_values<int64_t>(DType::kInt64, ReduceKind::kSum, {largest, 1}), -largest - 1);
}

TEST(ReduceTest, TruncatesIntegerMeans) {
  EXPECT_EQ(reduce_values<int8_t>(DType::kInt8, ReduceKind::kSum, {-4, -3}, 2), -3);
  EXPECT_EQ(reduce_values<int8_t>(DType::kInt8, ReduceKind::kSum, {100}, 1000), 0);
  const int32_t smallest = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(reduce_values<int32_t>(DType::kInt32, ReduceKind::kSum, {smallest, 1}, 3),
            (smallest + 1) / 3);
  EXPECT_EQ(reduce_values<uint64_t>(DType::kUInt64, ReduceKind::kSum, {~uint64_t{0}}, 2),
            ~uint64_t{0} / 2);
}

TEST(ReduceTest, MinAndMaxPropagateNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceKind kind : {ReduceKind::kMin, ReduceKind::kMax}) {
    for (size_t position = 0; position < 3; ++position) {
      std::vector<float> values = {1, -2, 3};
      values[position] = nan;
      EXPECT_TRUE(std::isnan(reduce_values<float>(DType::kFloat32, kind, values)));
      EXPECT_TRUE(
          std::isnan(reduce_values<double>(DType::kFloat64, kind, {values.begin(), values.end()})));
      EXPECT_TRUE(std::isnan(reduce_small<Float16>(DType::kFloat16, kind, values)));
      EXPECT_TRUE(std::isnan(reduce_small<BFloat16>(DType::kBFloat16, kind, values)));
      EXPECT_TRUE(std::isnan(reduce_small<Float8E4M3FN>(DType::kFloat8E4M3FN, kind, values)));
      EXPECT_TRUE(std::isnan(reduce_small<Float8E5M2FNUZ>(DType::kFloat8E5M2FNUZ, kind, values)));
    }
  }
}

TEST(ReduceTest, MultipliesComplexNumbers) {
  using Complex = std::complex<float>;
  EXPECT_EQ(
      reduce_values<Complex>(DType::kComplex64, ReduceKind::kProduct, {{1, 2}, {3, -1}, {0, 1}}),
      Complex(-5, 5));
}

TEST(ReduceTest, CopiesASingleSource) {
  // Whatever the bits: a copy does not make another NaN of a NaN, nor another true of a true.
  EXPECT_EQ(reduce_values<uint16_t>(DType::kFloat16, ReduceKind::kSum, {0xFDCB}), 0xFDCB);
  EXPECT_EQ(reduce_values<uint8_t>(DType::kBool, ReduceKind::kSum, {2}), 2);
  uint32_t value = 7;
  const void* const source = &value;
  reduce(&value, {&source, 1}, 1, DType::kUInt32, ReduceKind::kMax);
  EXPECT_EQ(value, 7u);
}

TEST(ReduceTest, TakesNoElements) {
  const void* const sources[] = {nullptr, nullptr};
  reduce(nullptr, sources, 0, DType::kFloat32, ReduceKind::kSum, 2);
}

TEST(ReduceTest, RefusesWhatMakesNoSense) {
  const auto message = [](DType dtype, ReduceKind kind, int divisor = 1) {
    return message_of([&] { check_reducible(dtype, kind, divisor); });
  };
  EXPECT_EQ(message(DType::kFloat32, ReduceKind::kBitAnd),
            "Cannot use ReduceOp.BAND with non-integral dtype");
  EXPECT_EQ(message(DType::kBFloat16, ReduceKind::kBitOr),
            "Cannot use ReduceOp.BOR with non-integral dtype");
  EXPECT_EQ(message(DType::kComplex64, ReduceKind::kBitXor),
            "Cannot use ReduceOp.BXOR with non-integral dtype");
  EXPECT_EQ(message(DType::kComplex64, ReduceKind::kMax),
            "ReduceOp.MAX is not supported for complex dtypes");
  EXPECT_EQ(message(DType::kComplex128, ReduceKind::kMin),
            "ReduceOp.MIN is not supported for complex dtypes");
  EXPECT_EQ(message(DType::kBool, ReduceKind::kSum, 4), "ReduceOp.AVG is not supported for bool");
  EXPECT_EQ(message(DType::kBytes, ReduceKind::kSum),
            "ReduceOp.SUM is not supported for opaque bytes");
  EXPECT_EQ(message(DType::kFloat32, ReduceKind::kSum, 0),
            "a reduction's divisor must be positive, not 0");
  EXPECT_EQ(message_of([] { reduce(nullptr, {}, 1, DType::kFloat32, ReduceKind::kSum); }),
            "a reduction needs at least one source");
  // The memory stays untouched: there is none.
  const void* const sources[] = {nullptr, nullptr};
  message_of([&] { reduce(nullptr, sources, 8, DType::kFloat32, ReduceKind::kBitAnd); });
}

}  // namespace
}  // namespace q7x2
