#include "backend/element_type.h"

namespace q7x2 {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return DType::kUInt8;
    case at::kChar:
      return DType::kInt8;
    case at::kUInt16:
      return DType::kUInt16;
    case at::kShort:
      return DType::kInt16;
    case at::kUInt32:
      return DType::kUInt32;
    case at::kInt:
      return DType::kInt32;
    case at::kUInt64:
      return DType::kUInt64;
    case at::kLong:
      return DType::kInt64;
    case at::kBool:
      return DType::kBool;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kFloat8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case at::kFloat8_e4m3fnuz:
      return DType::kFloat8E4M3FNUZ;
    case at::kFloat8_e5m2:
      return DType::kFloat8E5M2;
    case at::kFloat8_e5m2fnuz:
      return DType::kFloat8E5M2FNUZ;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    default:
      return DType::kBytes;
  }
}

}  // namespace q7x2
