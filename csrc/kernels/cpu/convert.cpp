#include "kernels/cpu/convert.h"

#include <string>

#include "base/error.h"
#include "kernels/cpu/elements.h"

namespace q7x2 {
namespace {

Q7X2_ELEMENT float to_float(float value) {
  return value;
}
Q7X2_ELEMENT float to_float(double value) {
  return static_cast<float>(value);
}

template <class T>
Q7X2_ELEMENT T to(float value) {
  return from_float<T>(value);
}
template <>
Q7X2_ELEMENT float to<float>(float value) {
  return value;
}
template <>
Q7X2_ELEMENT double to<double>(float value) {
  return value;
}

/// Calls `body` with the element type of `dtype`.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat64:
      return body(double{});
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat16:
      return body(Float16{});
    case DType::kBFloat16:
      return body(BFloat16{});
    case DType::kFloat8E4M3FN:
      return body(Float8E4M3FN{});
    case DType::kFloat8E4M3FNUZ:
      return body(Float8E4M3FNUZ{});
    case DType::kFloat8E5M2:
      return body(Float8E5M2{});
    case DType::kFloat8E5M2FNUZ:
      return body(Float8E5M2FNUZ{});
    default:
      throw Error(ErrorCode::kInvalidArgument,
                  std::string("expected floats, got ") + to_string(dtype));
  }
}

}  // namespace

bool is_float(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return true;
    default:
      return false;
  }
}

void widen(float* out, const void* in, size_t count, DType dtype) {
  with_type(dtype, [&](auto element) {
    const auto* elements = static_cast<const decltype(element)*>(in);
    for (size_t i = 0; i < count; ++i) out[i] = to_float(elements[i]);
  });
}

void narrow(void* out, const float* in, size_t count, DType dtype) {
  with_type(dtype, [&](auto element) {
    auto* elements = static_cast<decltype(element)*>(out);
    for (size_t i = 0; i < count; ++i) elements[i] = to<decltype(element)>(in[i]);
  });
}

}  // namespace q7x2
