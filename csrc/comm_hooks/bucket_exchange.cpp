// The messages of a bucket that are not compressed: whole gradients, and counts of who uses what.
#include "comm_hooks/compressor.h"

namespace q7x2 {

int64_t BucketExchange::side_numel() const {
  int64_t numel = counts_uses ? static_cast<int64_t>(coded.size()) : 0;
  for (const size_t i : whole) numel += bucket.gradients[i].flat.numel();
  return numel;
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
  if (!counts_uses) return;
  std::vector<float> uses;
  for (const bool is_idle : idle) uses.push_back(is_idle ? 0 : 1);
  to.narrow(0, offset, to.numel() - offset).copy_(at::tensor(uses, at::kFloat));
}

std::vector<bool> BucketExchange::unpack_side() const {
  int64_t offset = 0;
  for (const size_t i : whole) {
    const at::Tensor& flat = bucket.gradients[i].flat;
    flat.copy_(side.narrow(0, offset, flat.numel()));
    offset += flat.numel();
  }
  std::vector<bool> unused;
  if (!counts_uses) return unused;
  const at::Tensor counts = side.narrow(0, offset, side.numel() - offset).to(at::kFloat).cpu();
  for (int64_t i = 0; i < counts.numel(); ++i) {
    unused.push_back(counts.const_data_ptr<float>()[i] == 0);
  }
  return unused;
}

}  // namespace q7x2
