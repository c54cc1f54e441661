#include "comm_hooks/methods/factor_message.h"

#include <algorithm>
#include <utility>

#include "comm_hooks/compress/coded_sum.h"
#include "comm_hooks/compress/stock_all_reduce.h"
#include "kernels/codec/codec.h"

namespace q7x2 {
namespace {

const char* codec_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? "fp16" : "bf16";
}

/// Whether all messages of the tensor's sum use the host's memory. The same on all ranks.
bool stays_on_host(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  const auto backend = group.getBackend(tensor.device().type());
  auto* const ours = dynamic_cast<ProcessGroupQ7x2*>(backend.get());
  if (ours == nullptr || !tensor.is_cpu()) return false;
  const std::shared_ptr<const Fabric> fabric = ours->fabric();
  const std::vector<int>& hosts = fabric->host_of;
  return std::ranges::all_of(hosts, [&](int host) { return host == hosts[0]; });
}

/// Sums `factors` in place. Ranks of one host add them without rounding, because rounding takes
/// longer than copying twice the bytes. Otherwise `lost` becomes the error of the codec.
HookCollective rounded_sum(const std::shared_ptr<const Codec>& codec, const at::Tensor& factors,
                           const std::shared_ptr<at::Tensor>& lost) {
  const auto start = [=](c10d::ProcessGroup& group) {
    if (stays_on_host(group, factors)) return HookCollective::sum(factors).start(group);
    *lost = at::zeros_like(factors);
    CodedOptions how;
    how.errors = {*lost};
    how.step = 0;  // no random numbers are used
    return coded_sum(*codec, factors, std::move(how)).start(group);
  };
  return {start, coded_sum(*codec, factors, {}).bytes};
}

}  // namespace

std::vector<HookCollective> FactorMessage::sum() {
  if (!options_.dtype || !has_factors()) return {HookCollective::sum(elements_)};
  rounded_ = factors().to(*options_.dtype);
  std::vector<HookCollective> collectives{HookCollective::sum(rounded_)};
  if (whole_ > 0) collectives.push_back(HookCollective::sum(elements_.narrow(0, 0, whole_)));
  return collectives;
}

std::vector<HookCollective> FactorMessage::sum_and_keep_own(const HookContext& context) {
  if (!has_factors()) return sum();
  if (!options_.dtype) {
    own_ = factors().clone();
    return sum();
  }
  // In place, unless the elements are wider than codecs accept.
  own_ = factors().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const bool is_wider = elements_.scalar_type() != at::kFloat;
  if (is_wider) rounded_ = own_.clone();
  const at::Tensor sum = is_wider ? rounded_ : factors();
  lost_ = std::make_shared<at::Tensor>();
  const std::shared_ptr<const Codec> codec = Codec::make(codec_of(*options_.dtype));
  std::vector<HookCollective> collectives;
  if (options_.over_stock) {
    *lost_ = at::zeros_like(sum);
    stock_ = std::make_shared<StockAllReduce>(codec, CodecKeys{}, sum, *lost_, context.rank,
                                              context.world_size);
    stock_->exchange_lengths();  // the lengths are known
    collectives.push_back(stock_->scatter());
    is_scattering_ = true;
  } else {
    collectives.push_back(rounded_sum(codec, sum, lost_));
  }
  if (whole_ > 0) collectives.push_back(HookCollective::sum(elements_.narrow(0, 0, whole_)));
  return collectives;
}

std::vector<HookCollective> FactorMessage::next() {
  is_scattering_ = false;
  stock_->reduce();
  stock_->gather_lengths();
  return {stock_->gather()};
}

bool FactorMessage::receive() {
  if (has_next()) return true;
  if (stock_) stock_->finish();
  if (rounded_.defined()) factors().copy_(rounded_);
  if (lost_) {
    if (lost_->defined()) own_.sub_(*lost_);
    own_ = own_.to(elements_.scalar_type());
  }
  return all_finite(elements_);
}

}  // namespace q7x2
