// The marks that a device's select stage must make, computed by the CPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "codec_cases.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/marking.h"
#include "kernels/codec/random.h"
#include "kernels/codec/sparse_elements.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/sparse_select.h"
#include "kernels/codec/value_elements.h"

namespace q7x2::test {

inline const std::vector<std::string> kMarkedCodecs = {
    "topk:0.01",     "topk:0.4+fp16", "topk:1", "sampled:0.02", "sampled:1",
    "threshold:0.7", "randomk:0.1",   "nm:2:4", "nm:1:32",      "topk:0.01+int8"};

struct MarksOfTheCpu {
  std::vector<uint64_t> mask;
  std::vector<uint32_t> before;
  MarkCounts counts;
};

inline MarksOfTheCpu marks_of_the_cpu(const CodecSpec& spec, const std::vector<float>& values,
                                      uint64_t key) {
  const SparseKernels& cpu = dispatched_sparse_kernels();
  const size_t count = values.size();
  MarksOfTheCpu marks{std::vector<uint64_t>(mask_words(count)), {}, {}};
  switch (spec.select) {
    case SelectKind::kRandomK:
      cpu.mark_random(key, 0, count, random_limit(spec.amount), marks.mask.data());
      break;
    case SelectKind::kNofM:
      cpu.mark_largest(values.data(), count, static_cast<size_t>(spec.m), spec.n, spec.m,
                       marks.mask.data());
      break;
    default: {
      const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
      const Selection selection = spec.select == SelectKind::kThreshold
                                      ? select_threshold(spec.amount)
                                      : Codec(spec).select(read, count, {.shared = key});
      cpu.mark(values.data(), count, selection.least, ties_among(selection, 0, count),
               marks.mask.data());
    }
  }
  const float extreme = spec.value.kind == ValueKind::kFloat16 ? kExtremeOfFloat16 : kExtreme;
  for (size_t i = 0; i < count; ++i) {
    if (i % kMarkTile == 0) marks.before.push_back(marks.counts.marked);
    marks.counts.marked += static_cast<uint32_t>(marks.mask[i / 64] >> (i % 64) & 1);
    marks.counts.extreme += magnitude_bits(values[i]) >= float_to_bits(extreme) ? 1 : 0;
  }
  return marks;
}

/// Numbers of few magnitudes, so that the boundary has many ties.
inline std::vector<float> few_magnitudes(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t random = random_bits(random_stream(3, 0), static_cast<uint32_t>(i));
    values[i] = static_cast<float>(static_cast<int>(random % 7) - 3);
  }
  return values;
}

}  // namespace q7x2::test
