// The messages of a bucket that are not compressed: whole gradients, and counts of the ranks that
// use each gradient.
#include "base/error.h"
#include "comm_hooks/compress/compressor.h"

namespace q7x2 {

void Compressor::check(size_t parameter, const std::string& level) const {
  throw Error(ErrorCode::kInvalidArgument,
              "the compressor of " + context_.parameters[parameter].name +
                  " has no levels to choose from, got '" + level + "'");
}

std::vector<HookCollective> BucketExchange::whole_sums() const {
  std::vector<HookCollective> sums{HookCollective::sum(bucket.buffer)};
  if (facts.defined()) sums.push_back(HookCollective::sum(facts));
  return sums;
}

int64_t BucketExchange::side_numel() const {
  int64_t numel = counts_uses ? static_cast<int64_t>(coded.size()) : 0;
  for (const size_t i : whole) numel += bucket.gradients[i].flat.numel();
  return facts.defined() ? numel + facts.numel() : numel;
}

at::Tensor BucketExchange::new_side() const {
  const at::TensorOptions options = bucket.buffer.options();
  const bool is_wide =
      bucket.buffer.scalar_type() == at::kFloat || bucket.buffer.scalar_type() == at::kDouble;
  return at::empty({side_numel()},
                   facts.defined() && !is_wide ? options.dtype(at::kFloat) : options);
}

void BucketExchange::pack_side(const at::Tensor& to) {
  side = to;
  int64_t offset = 0;
  for (const size_t i : whole) {
    const at::Tensor& flat = bucket.gradients[i].flat;
    to.narrow(0, offset, flat.numel()).copy_(flat);
    offset += flat.numel();
  }
  if (share != 1) to.narrow(0, 0, offset).mul_(share);
  if (counts_uses) {
    std::vector<float> uses;
    for (size_t i = 0; i < coded.size(); ++i) uses.push_back(idle[i] ? 0 : 1);
    const auto count = static_cast<int64_t>(uses.size());
    to.narrow(0, offset, count).copy_(at::tensor(uses, at::kFloat));
    offset += count;
  }
  if (facts.defined()) to.narrow(0, offset, facts.numel()).copy_(facts);
}

void BucketExchange::unpack_side() {
  int64_t offset = 0;
  for (const size_t i : whole) {
    const at::Tensor& flat = bucket.gradients[i].flat;
    flat.copy_(side.narrow(0, offset, flat.numel()));
    offset += flat.numel();
  }
  if (facts.defined()) {
    facts.copy_(side.narrow(0, side.numel() - facts.numel(), facts.numel()));
  }
  if (!counts_uses) return;
  const at::Tensor counts =
      side.narrow(0, offset, static_cast<int64_t>(coded.size())).to(at::kFloat).cpu();
  for (int64_t i = 0; i < counts.numel(); ++i) {
    unused.push_back(counts.const_data_ptr<float>()[i] == 0);
  }
}

}  // namespace q7x2
