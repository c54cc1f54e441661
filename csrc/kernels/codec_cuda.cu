// See value_codec_impl.h: what is a loop over a group there is one over a thread block here. Sums
// run in kLanes partial sums as well, and no multiplication is fused with an addition
// (-fmad=false).
#include "base/error.h"
#include "device/launch.h"
#include "kernels/codec_cuda.h"
#include "kernels/elements.h"
#include "kernels/group_cuda.h"
#include "kernels/pack.h"
#include "kernels/random.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

constexpr unsigned kThreads = 128;
constexpr size_t kMostBlocks = 65535;

// ----------------------------------------------------------------------------------------- groups

/// Where a group's scales and codes are in a body.
struct Place {
  float* scales;
  uint8_t* packed;
  size_t first;  // element
  size_t count;
  size_t coded;
};

__device__ Place place_of(const ValueSpec& spec, const std::byte* body, size_t count,
                          size_t group) {
  const size_t first = group * spec.group;
  const size_t here = count - first < spec.group ? count - first : spec.group;
  auto* bytes = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(body));
  return {reinterpret_cast<float*>(bytes) + group * scales_of_group(spec),
          bytes + scales_bytes(spec, count) + first * spec.bits / 8, first, here,
          (here + 7) / 8 * 8};
}

template <class Coder>
__device__ void make_codes(Coder coder, Scale scale, const float* values, size_t count,
                           bool stochastic, const ValueBlock& block, uint64_t first,
                           Buffer& buffer) {
  const RandomStream rounding = group_stream(block.rounding_key, first);
  for_each(count, [&](size_t i) {
    const float chance = stochastic ? group_chance(rounding, static_cast<uint32_t>(i)) : 0.5F;
    buffer.codes[i] = static_cast<uint8_t>(coder.code(values[i], scale, chance));
  });
}

template <class Coder>
__device__ Scale encode_group(Coder coder, const ValueSpec& spec, const ValueBlock& block,
                              const Place& place, Buffer& buffer) {
  const size_t count = place.count;
  const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
  const uint64_t first = block.first + place.first;
  const bool stochastic = spec.stochastic && block.error == nullptr;
  for_each(padded, [&](size_t i) {
    float sum = 0;
    if (i < count) {
      const float value = block.values[place.first + i];
      sum = block.add == nullptr ? value : value + block.add[place.first + i];
    }
    buffer.sums[i] = sum;
    buffer.rotated[i] = sum;
  });
  const unsigned largest = largest_magnitude(buffer.sums, count, buffer);
  if (largest >= kInfinityBits) return no_scale();
  float* error = block.error == nullptr ? nullptr : block.error + place.first;
  if (!spec.hadamard) {
    const Scale scale = scale_of(spec, buffer.sums, count, padded, largest, stochastic, buffer);
    if (!is_finite(scale.step)) return scale;
    make_codes(coder, scale, buffer.sums, count, stochastic, block, first, buffer);
    if (error != nullptr) {
      for_each(count, [&](size_t i) {
        error[i] = (buffer.sums[i] - coder.value(buffer.codes[i], scale)) * block.error_scale;
      });
    }
    return scale;
  }
  const RandomStream signs = group_stream(block.shared_key, first);
  float* rotated = buffer.rotated;
  rotate(rotated, count, signs);
  const unsigned largest_rotated = largest_magnitude(rotated, count, buffer);
  Scale scale = scale_of(spec, rotated, count, padded, largest_rotated, stochastic, buffer);
  if (!is_finite(scale.step)) return scale;
  make_codes(coder, scale, rotated, count, stochastic, block, first, buffer);
  if (stochastic) return scale;
  float* units = buffer.units;
  for_each(padded, [&](size_t i) { units[i] = i < count ? coder.unit(buffer.codes[i]) : 0; });
  const float inverse = scale.inverse;
  const float along =
      sum_of(padded, buffer, [&](size_t i) { return rotated[i] * inverse * units[i]; });
  if (error == nullptr) {
    const float squares = sum_of(padded, buffer, [&](size_t i) {
      const float part = rotated[i] * inverse;
      return part * part;
    });
    scale.step = step_to_project(scale.step, squares, along);
    return scale;
  }
  const float unit_squares = sum_of(padded, buffer, [&](size_t i) { return units[i] * units[i]; });
  scale.step = step_to_fit(scale.step, unit_squares, along);
  rotate_back(units, count, signs, scale.step);
  for_each(count, [&](size_t i) {
    const float lost = (buffer.sums[i] - units[i]) * block.error_scale;
    error[i] = is_finite(lost) ? lost : error[i];
  });
  return scale;
}

template <class Coder>
__global__ void encode_groups(Coder coder, ValueSpec spec, ValueBlock block, std::byte* body) {
  __shared__ Buffer buffer;
  const size_t groups = num_groups(spec, block.count);
  for (size_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const Place place = place_of(spec, body, block.count, group);
    const Scale scale = encode_group(coder, spec, block, place, buffer);
    const size_t known = is_finite(scale.step) ? place.count : 0;
    for_each(place.coded, [&](size_t i) {
      if (i >= known) buffer.codes[i] = static_cast<uint8_t>(coder.zero());
    });
    for_each(1, [&](size_t) {
      place.scales[0] = scale.step;
      if (spec.minmax) place.scales[1] = scale.least;
    });
    for_each(place.coded * spec.bits / 8, [&](size_t i) {
      place.packed[i] = packed_byte(buffer.codes, spec.bits, place.coded, i);
    });
  }
}

template <class Coder>
__global__ void decode_groups(Coder coder, ValueSpec spec, const std::byte* body, float* out,
                              size_t count, uint64_t first, uint64_t shared_key, bool add) {
  __shared__ Buffer buffer;
  const size_t groups = num_groups(spec, count);
  for (size_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const Place place = place_of(spec, body, count, group);
    const Scale scale = {place.scales[0], 0, spec.minmax ? place.scales[1] : 0};
    float* target = out + place.first;
    const auto code = [&](size_t i) {
      return unpacked_code(place.packed, spec.bits, place.coded, i);
    };
    if (!spec.hadamard) {
      for_each(place.count, [&](size_t i) {
        const float value = coder.value(code(i), scale);
        target[i] = add ? target[i] + value : value;
      });
      continue;
    }
    float* units = buffer.units;
    for_each(place.count, [&](size_t i) { units[i] = coder.unit(code(i)); });
    rotate_back(units, place.count, group_stream(shared_key, first + place.first), scale.step);
    for_each(place.count, [&](size_t i) { target[i] = add ? target[i] + units[i] : units[i]; });
  }
}

// ------------------------------------------------------------------------------------------ casts

struct Whole {
  using Bits = uint32_t;
  Bits bits;
};

template <class T>
__device__ T narrowed(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {float_to_bits(value)};
  } else {
    return from_float<T>(value);
  }
}

template <class T>
__device__ float widened(T value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return float_from_bits(value.bits);
  } else {
    return to_float(value);
  }
}

template <class T>
__global__ void encode_casts(ValueBlock block, T* codes) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < block.count;
       i += step) {
    const float sum = block.add == nullptr ? block.values[i] : block.values[i] + block.add[i];
    const T code = narrowed<T>(sum);
    codes[i] = code;
    if (block.error == nullptr) continue;
    const float lost = (sum - widened(code)) * block.error_scale;
    if (is_finite(lost)) block.error[i] = lost;
  }
}

template <class T>
__global__ void decode_casts(const T* codes, float* out, size_t count, bool add) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const float value = widened(codes[i]);
    out[i] = add ? out[i] + value : value;
  }
}

// ----------------------------------------------------------------------------------------- starts

device::LaunchShape shape_for(size_t work, size_t of_one) {
  const size_t blocks = (work + of_one - 1) / of_one;
  return {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads};
}

/// Calls `cast` with a float type, or `groups` with a coder.
template <class Cast, class Groups>
void with_kind(const ValueSpec& spec, Cast cast, Groups groups) {
  switch (spec.kind) {
    case ValueKind::kFloat32:
      return cast(Whole{});
    case ValueKind::kFloat16:
      return cast(Float16{});
    case ValueKind::kBFloat16:
      return cast(BFloat16{});
    case ValueKind::kFloat8E4M3:
      return groups(Float8Steps<Float8E4M3FN>{});
    case ValueKind::kFloat8E5M2:
      return groups(Float8Steps<Float8E5M2>{});
    case ValueKind::kUniform:
      if (spec.minmax) return groups(AffineSteps{(1 << spec.bits) - 1});
      [[fallthrough]];
    case ValueKind::kQsgd:
    case ValueKind::kTernary:
      return groups(SymmetricSteps{levels_of(spec.bits)});
    case ValueKind::kOneBit:
    case ValueKind::kSign:
      return groups(SignStep{});
    case ValueKind::kSumInt:
      throw Error(ErrorCode::kInvalidArgument, "integers that add are no value stage");
  }
}

}  // namespace

void encode_values_cuda(const ValueSpec& spec, const ValueBlock& block, std::byte* body,
                        void* stream) {
  if (block.count == 0) return;
  with_kind(
      spec,
      [&](auto code) {
        device::launch("encoding on the GPU", encode_casts<decltype(code)>,
                       shape_for(block.count, kThreads), stream, block,
                       reinterpret_cast<decltype(code)*>(body));
      },
      [&](auto coder) {
        device::launch("encoding on the GPU", encode_groups<decltype(coder)>,
                       shape_for(block.count, spec.group), stream, coder, spec, block, body);
      });
}

void decode_values_cuda(const ValueSpec& spec, const std::byte* body, float* out, size_t count,
                        uint64_t first, uint64_t shared_key, bool add, void* stream) {
  if (count == 0) return;
  with_kind(
      spec,
      [&](auto code) {
        device::launch("decoding on the GPU", decode_casts<decltype(code)>,
                       shape_for(count, kThreads), stream,
                       reinterpret_cast<const decltype(code)*>(body), out, count, add);
      },
      [&](auto coder) {
        device::launch("decoding on the GPU", decode_groups<decltype(coder)>,
                       shape_for(count, spec.group), stream, coder, spec, body, out, count, first,
                       shared_key, add);
      });
}

}  // namespace q7x2
