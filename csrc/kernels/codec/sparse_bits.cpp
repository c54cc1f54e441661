// What is known about a selection without data: the codec of its sums, and the number of bits.
#include <algorithm>
#include <cmath>

#include "kernels/codec/sparse.h"

namespace q7x2 {

CodecSpec spec_of_sums(const CodecSpec& spec) {
  CodecSpec sums;
  sums.value = spec.value;
  sums.lossless = spec.lossless;
  switch (spec.select) {
    case SelectKind::kTopK:
      sums.select = spec.reselect ? SelectKind::kReselect : SelectKind::kNonZero;
      if (spec.reselect) sums.amount = spec.amount;
      return sums;
    case SelectKind::kSampled:
    case SelectKind::kThreshold:
    case SelectKind::kNofM:
      sums.select = SelectKind::kNonZero;
      return sums;
    case SelectKind::kBlocks:
      sums.select = SelectKind::kNonZeroBlocks;
      return sums;
    default:
      return spec;
  }
}

namespace {

/// The share of the tensor's positions; 1 if it depends on the data.
double share_of(const CodecSpec& spec) {
  switch (spec.select) {
    case SelectKind::kTopK:
    case SelectKind::kSampled:
    case SelectKind::kReselect:
    case SelectKind::kRandomK:
    case SelectKind::kBlocks:
      return spec.amount;
    case SelectKind::kNofM:
      return static_cast<double>(spec.n) / spec.m;
    default:
      return 1;
  }
}

double bits_at(const CodecSpec& spec, double value_bits, double share) {
  // The probability of a gap above a length is (1 - share)^length.
  const double gap = 8 + 8 * std::pow(1 - share, 240) + 16 * std::pow(1 - share, 4080);
  double index_bits = std::min(1.0, share * gap);
  if (spec.select == SelectKind::kBlocks) index_bits /= kSelectBlock;
  if (spec.select == SelectKind::kRandomK) index_bits = 0;
  return std::min(share * value_bits + index_bits, value_bits);
}

}  // namespace

double sparse_share(const CodecSpec& spec, int contributions) {
  const double own = share_of(spec);
  const bool stays = spec.reselect || spec.select == SelectKind::kRandomK;
  return stays ? own : 1 - std::pow(1 - own, contributions);
}

double sparse_bits(const CodecSpec& spec, double value_bits) {
  return bits_at(spec, value_bits, share_of(spec));
}

double sparse_sum_bits(const CodecSpec& spec, double value_bits, int contributions) {
  return bits_at(spec, value_bits, sparse_share(spec, contributions));
}

}  // namespace q7x2
