#include "codec_kernels.h"

#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/codec_kernels.h"
#include "memory.h"
#include "stream.h"

namespace accelerator {
namespace {

using q7x2::CodecSpec;
using q7x2::Fold;
using q7x2::FoldSource;
using q7x2::FoldTarget;
using q7x2::MarkCounts;
using q7x2::Marks;
using q7x2::MarkSource;
using q7x2::SumIntBlock;
using q7x2::ValueBlock;
using q7x2::ValueSpec;

// A call is enqueued with the addresses that kernels use.
template <typename T>
T* there(T* address) {
  return reinterpret_cast<T*>(kernel_view(address));
}

ValueBlock there(ValueBlock block) {
  block.values = there(block.values);
  block.add = there(block.add);
  block.error = there(block.error);
  return block;
}

SumIntBlock there(SumIntBlock block) {
  block.values = there(block.values);
  block.errors = there(block.errors);
  return block;
}

Queue& queue_at(void* stream) {
  return *static_cast<Queue*>(stream);
}

void encode(const ValueSpec& spec, const ValueBlock& block, std::byte* body, void* stream) {
  queue_at(stream).enqueue([spec, block = there(block), body = there(body)] {
    q7x2::encode_values_cuda(spec, block, body, nullptr);
  });
}

void decode(const ValueSpec& spec, const std::byte* body, float* out, size_t count, uint64_t first,
            uint64_t shared_key, bool add, void* stream) {
  queue_at(stream).enqueue([=, body = there(body), out = there(out)] {
    q7x2::decode_values_cuda(spec, body, out, count, first, shared_key, add, nullptr);
  });
}

void fold(const ValueSpec& spec, const Fold& fold, const ValueBlock& block, const FoldTarget& to,
          void* stream) {
  Fold sum = fold;
  for (FoldSource& source : sum.of) source = {there(source.body), there(source.values)};
  const FoldTarget target{there(to.body), there(to.values)};
  queue_at(stream).enqueue([spec, sum, block = there(block), target] {
    q7x2::fold_values_cuda(spec, sum, block, target, nullptr);
  });
}

void find_nonfinite(const float* values, size_t count, uint32_t* found, void* stream) {
  queue_at(stream).enqueue([values = there(values), count, found] {
    q7x2::find_nonfinite_cuda(values, count, found, nullptr);
  });
}

void group_maxima(const ValueSpec& spec, const SumIntBlock& block, float* maxima, void* stream) {
  queue_at(stream).enqueue([spec, block = there(block), maxima = there(maxima)] {
    q7x2::group_maxima_cuda(spec, block, maxima, nullptr);
  });
}

void encode_sum_int(const ValueSpec& spec, int levels, const SumIntBlock& block,
                    const float* maxima, void* codes, void* stream) {
  queue_at(stream).enqueue(
      [=, block = there(block), maxima = there(maxima), codes = kernel_view(codes)] {
        q7x2::encode_sum_int_cuda(spec, levels, block, maxima, codes, nullptr);
      });
}

void decode_sum_int(const ValueSpec& spec, int levels, const void* sums, const float* maxima,
                    int divisor, float* out, size_t count, void* stream) {
  queue_at(stream).enqueue([=, sums = kernel_view(sums), maxima = there(maxima), out = there(out)] {
    q7x2::decode_sum_int_cuda(spec, levels, sums, maxima, divisor, out, count, nullptr);
  });
}

Marks there(Marks marks) {
  marks.mask = there(marks.mask);
  marks.before = there(marks.before);
  return marks;
}

void mark(const CodecSpec& spec, const MarkSource& source, const Marks& to, MarkCounts* counts,
          std::byte* scratch, void* stream) {
  MarkSource from = source;
  from.values = there(from.values);
  from.add = there(from.add);
  queue_at(stream).enqueue(
      [spec, from, to = there(to), counts = there(counts), scratch = there(scratch)] {
        q7x2::mark_cuda(spec, from, to, counts, scratch, nullptr);
      });
}

void take(const Marks& marks, const float* values, float* error, float* taken, void* stream) {
  queue_at(stream).enqueue(
      [marks = there(marks), values = there(values), error = there(error), taken = there(taken)] {
        q7x2::take_marked_cuda(marks, values, error, taken, nullptr);
      });
}

void put(const Marks& marks, const float* put, float* out, bool add, void* stream) {
  queue_at(stream).enqueue([marks = there(marks), put = there(put), out = there(out), add] {
    q7x2::put_marked_cuda(marks, put, out, add, nullptr);
  });
}

constexpr q7x2::CodecKernels kKernels{.size = sizeof(q7x2::CodecKernels),
                                      .encode = &encode,
                                      .decode = &decode,
                                      .fold = &fold,
                                      .find_nonfinite = &find_nonfinite,
                                      .group_maxima = &group_maxima,
                                      .encode_sum_int = &encode_sum_int,
                                      .decode_sum_int = &decode_sum_int,
                                      .mark = &mark,
                                      .take = &take,
                                      .put = &put};

}  // namespace

const void* codec_kernels() {
  return &kKernels;
}

}  // namespace accelerator
