// The types that every layer shares: element types, reductions, collectives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace q7x2 {

/// Element types of reductions. Other types are sent as bytes.
enum class DType : uint8_t {
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kUInt64,
  kInt64,
  kBool,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kComplex64,
  kComplex128,
  kBytes,  ///< opaque bytes: moved, never reduced
};

/// Bytes of one element.
size_t element_size(DType dtype);

/// The name as torch prints it without its prefix, for example "float32".
const char* to_string(DType dtype);

/// Whether partial sums must be stored in a wider type, so that a Plan may round only once: true
/// for floats of 16 and of 8 bits.
bool accumulates_wider(DType dtype);

enum class ReduceKind : uint8_t { kSum, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

const char* to_string(ReduceKind kind);

enum class Collective : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
};

/// The name as it appears in messages and on the command line, for example "all_reduce".
const char* to_string(Collective op);

}  // namespace q7x2
