#include "executor/collective/input_selection.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "kernels/cpu/convert.h"
#include "plan/ir/owner_ranges.h"
#include "transport/task/task.h"

namespace q7x2 {

size_t InputSelection::bytes() const {
  return run_.slicing().input_elements() * element_size(run_.call().dtype);
}

const float* InputSelection::read(std::vector<float>& chunk, size_t first, size_t wanted) const {
  const CollectiveCall& call = run_.call();
  const size_t element = element_size(call.dtype);
  const std::span<const uint64_t> begins = run_.slicing().region_begins();
  float* out = chunk.data();
  const auto after = std::ranges::upper_bound(begins, first);
  auto i = static_cast<size_t>(after - begins.begin()) - 1;
  for (; i < call.input.size() && wanted > 0; ++i) {
    const size_t skipped = first - begins[i];
    const size_t length = std::min<size_t>(wanted, begins[i + 1] - first);
    const std::byte* const source = call.input[i].data + skipped * element;
    if (call.dtype == DType::kFloat32 && call.coding.errors.empty() && length == wanted &&
        out == chunk.data()) {
      return reinterpret_cast<const float*>(source);
    }
    widen(out, source, length, call.dtype);
    if (!call.coding.errors.empty()) {
      const float* errors = call.coding.errors[i] + skipped;
      for (size_t j = 0; j < length; ++j) out[j] += errors[j];
    }
    out += length;
    wanted -= length;
    first += length;
  }
  return chunk.data();
}

void InputSelection::work() {
  const TimePoint began = Clock::now();
  std::vector<float> chunk(kLargestRead);
  run_.coder()->select([&](size_t first, size_t wanted) { return read(chunk, first, wanted); },
                       run_.slicing().input_elements());
  took_ = std::chrono::nanoseconds(Clock::now() - began).count();
}

std::vector<int32_t> InputSelection::count() {
  work();
  const TimePoint began = Clock::now();
  const size_t elements = run_.slicing().input_elements();
  std::vector<float> chunk(kLargestRead);
  std::vector<int32_t> counts = run_.coder()->count_selected(
      [&](size_t first, size_t wanted) { return read(chunk, first, wanted); }, elements,
      granule_of(elements, run_.slicing().longest_part()));
  took_ += std::chrono::nanoseconds(Clock::now() - began).count();
  return counts;
}

}  // namespace q7x2
