// Checks a reduction's arguments, and dispatches it to an instruction set.
#include "kernels/cpu/reduce.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/reduce_isa.h"

namespace q7x2 {
namespace {

constexpr std::array kIsaNames = {"avx512", "avx2", "baseline"};

std::vector<ReduceIsa> find_isas() {
  std::vector<ReduceIsa> isas;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Every processor with AVX2 and FMA also has F16C.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512) isas.push_back({"avx512", reduce_avx512});
  if (avx2) isas.push_back({"avx2", reduce_avx2});
#endif
  isas.push_back({"baseline", reduce_baseline});
  return isas;
}

/// The kernels of this process: those that Q7X2_ISA names, or the best.
const ReduceIsa& dispatched_isa() {
  static const ReduceIsa& isa = select_reduce_isa(std::getenv("Q7X2_ISA"));
  return isa;
}

bool is_complex(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

/// The name of a torch.distributed.ReduceOp.
const char* reduce_op_name(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return "SUM";
    case ReduceKind::kProduct:
      return "PRODUCT";
    case ReduceKind::kMin:
      return "MIN";
    case ReduceKind::kMax:
      return "MAX";
    case ReduceKind::kBitAnd:
      return "BAND";
    case ReduceKind::kBitOr:
      return "BOR";
    case ReduceKind::kBitXor:
      return "BXOR";
  }
  return "unknown";
}

[[noreturn]] void throw_invalid(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

std::span<const ReduceIsa> reduce_isas() {
  static const std::vector<ReduceIsa> isas = find_isas();
  return isas;
}

const ReduceIsa& select_reduce_isa(const char* name) {
  const std::span<const ReduceIsa> isas = reduce_isas();
  if (name == nullptr || *name == '\0') return isas.front();
  for (const ReduceIsa& isa : isas) {
    if (std::strcmp(isa.name, name) == 0) return isa;
  }
  const std::string setting = "Q7X2_ISA=" + std::string(name);
  for (const char* known : kIsaNames) {
    if (std::strcmp(known, name) == 0) {
      throw_invalid(setting + ": this processor cannot run it; the best that it can run is " +
                    isas.front().name);
    }
  }
  throw_invalid(setting + ": expected baseline, avx2 or avx512");
}

void check_reducible(DType dtype, ReduceKind kind, int divisor) {
  const auto op = [&] { return std::string("ReduceOp.") + reduce_op_name(kind); };
  const bool bitwise =
      kind == ReduceKind::kBitAnd || kind == ReduceKind::kBitOr || kind == ReduceKind::kBitXor;
  const bool ordered = kind == ReduceKind::kMin || kind == ReduceKind::kMax;
  if (dtype == DType::kBytes) {
    throw_invalid(op() + " is not supported for opaque bytes");
  }
  if (bitwise && (is_float(dtype) || is_complex(dtype))) {
    throw_invalid("Cannot use " + op() + " with non-integral dtype");
  }
  if (ordered && is_complex(dtype)) {
    throw_invalid(op() + " is not supported for complex dtypes");
  }
  if (divisor != 1 && dtype == DType::kBool) {
    throw_invalid("ReduceOp.AVG is not supported for bool");
  }
  if (divisor < 1) {
    throw_invalid("a reduction's divisor must be positive, not " + std::to_string(divisor));
  }
}

void reduce(void* dst, std::span<const void* const> sources, size_t count, DType dtype,
            ReduceKind kind, int divisor) {
  check_reducible(dtype, kind, divisor);
  if (sources.empty()) throw_invalid("a reduction needs at least one source");
  if (count == 0) return;
  if (sources.size() == 1 && divisor == 1) {
    if (dst != sources[0]) std::memcpy(dst, sources[0], count * element_size(dtype));
    return;
  }
  dispatched_isa().kernel(dst, sources.data(), sources.size(), count, dtype, kind, divisor);
}

const char* reduce_isa() {
  return dispatched_isa().name;
}

}  // namespace q7x2
