#include "kernels/codec/gathered_elements.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/codec/sparse_kernels.h"
#include "kernels/codec/value_elements.h"

namespace q7x2 {
namespace {

constexpr size_t kWord = 64;

size_t ones(uint64_t word) {
  return static_cast<size_t>(std::popcount(word));
}

}  // namespace

GatheredElements::GatheredElements(size_t count, size_t expected)
    : mask_(mask_words(count) + 1), values_(expected + kBlock) {
  before_.reserve(count / kBlock + 1);
  mask_[mask_.size() - 1] = 0;
}

GatheredElements::GatheredElements(size_t count, const uint64_t* mask)
    : mask_(mask_words(count) + 1), seen_(count) {
  std::copy_n(mask, mask_words(count), mask_.data());
  mask_[mask_.size() - 1] = 0;
  for (size_t word = 0; word < mask_words(count); ++word) {
    if (word % (kBlock / kWord) == 0) before_.push_back(size_);
    size_ += ones(mask_[word]);
  }
}

void GatheredElements::take(const float* values) {
  values_ = Recycled<float>(size_);
  std::copy_n(values, size_, values_.data());
}

void GatheredElements::add(const float* values, size_t count, uint32_t least) {
  if (values_.size() - size_ < count) {
    Recycled<float> longer(2 * values_.size());
    std::copy_n(values_.data(), size_, longer.data());
    values_ = std::move(longer);
  }
  before_.push_back(size_);
  size_ += dispatched_sparse_kernels().sift(values, count, least, mask_.data() + seen_ / kWord,
                                            values_.data() + size_);
  seen_ += count;
}

// Usually nearly all are kept, so only words with others are changed bit by bit.
uint64_t GatheredElements::keep(uint32_t least, size_t ties) {
  size_t tied = 0;  // gathered ones up to the last equal one that is kept
  for (size_t i = 0; ties > 0; ++i) {
    if (magnitude_bits(values_[i]) != least) continue;
    --ties;
    tied = i + 1;
  }
  const uint64_t last_tie = tied > 0 ? element_of(tied - 1) : ~uint64_t{0};
  const SparseKernels& kernels = dispatched_sparse_kernels();
  Recycled<uint64_t> kept(mask_words(size_) + 1);
  kept[kept.size() - 1] = 0;
  kernels.mark(values_.data(), size_, least, tied, kept.data());
  Recycled<float> values(size_);
  size_ = kernels.compact(values_.data(), kept.data(), size_, values.data());
  values_ = std::move(values);

  size_t read = 0;
  size_t sent = 0;
  for (size_t i = 0; i < mask_words(seen_); ++i) {
    if (i % (kBlock / kWord) == 0) before_[i / (kBlock / kWord)] = sent;
    if (mask_[i] == 0) continue;
    const size_t shift = read % kWord;
    uint64_t flags = kept[read / kWord] >> shift;
    if (shift > 0) flags |= kept[read / kWord + 1] << (kWord - shift);
    uint64_t& word = mask_[i];
    const size_t gathered = ones(word);
    read += gathered;
    sent += gathered;
    if (gathered < kWord && (~flags & ((uint64_t{1} << gathered) - 1)) == 0) continue;
    for (uint64_t bits = word; bits != 0; bits &= bits - 1, flags >>= 1) {
      if ((flags & 1) != 0) continue;
      word ^= bits & -bits;
      --sent;
    }
  }
  return last_tie;
}

size_t GatheredElements::copy_mask(size_t first, size_t count, uint64_t* mask) const {
  const size_t shift = first % kWord;
  const uint64_t* const from = mask_.data() + first / kWord;
  for (size_t i = 0; i < mask_words(count); ++i) {
    uint64_t word = from[i] >> shift;
    if (shift > 0) word |= from[i + 1] << (kWord - shift);
    const size_t rest = count - i * kWord;
    if (rest < kWord) word &= (uint64_t{1} << rest) - 1;
    mask[i] = word;
  }
  return count_between(first, first + count);
}

size_t GatheredElements::rank_of(size_t element) const {
  const size_t block = element / kBlock;
  if (block >= before_.size()) return size_;
  size_t rank = before_[block];
  for (size_t word = block * (kBlock / kWord); word < element / kWord; ++word) {
    rank += ones(mask_[word]);
  }
  const uint64_t in_front = (uint64_t{1} << (element % kWord)) - 1;
  return rank + ones(mask_[element / kWord] & in_front);
}

size_t GatheredElements::element_of(size_t rank) const {
  size_t word = 0;
  while (rank >= ones(mask_[word])) rank -= ones(mask_[word++]);
  uint64_t bits = mask_[word];
  while (rank-- > 0) bits &= bits - 1;
  return word * kWord + static_cast<size_t>(std::countr_zero(bits));
}

}  // namespace q7x2
