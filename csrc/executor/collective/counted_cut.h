// CountedCut: cuts the parts of an all-reduce so that all owners get messages of about the same
// length (plan/ir/owner_ranges.h).
//
// The elements that a codec selects are spread unevenly over a tensor. So each rank counts how many
// elements of each granule it sends, and the sums of these counts over all ranks determine where to
// cut. The elements are selected and counted in the caller's thread, while the task of the call is
// made.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "executor/call/slicing.h"
#include "executor/collective/prerequisite.h"

namespace q7x2 {

class CountedCut final : public Prerequisite {
 public:
  /// `counts`: this rank's. `slicing`: that of the call, which absorbs the sums.
  CountedCut(std::shared_ptr<PlanCache> plans, std::shared_ptr<PlanCache::Entry> entry,
             std::span<const int32_t> counts, Slicing& slicing)
      : Prerequisite(sum(std::move(plans), std::move(entry)), counts.size_bytes()),
        slicing_(slicing) {
    std::memcpy(memory().data(), counts.data(), counts.size_bytes());
  }

  std::unique_ptr<Job> absorb(Locked&) override {
    std::vector<int32_t> counts(memory().size() / sizeof(int32_t));
    std::memcpy(counts.data(), memory().data(), memory().size());
    slicing_.balance(counts);
    return nullptr;
  }

 private:
  static PlannedCall sum(std::shared_ptr<PlanCache> plans,
                         std::shared_ptr<PlanCache::Entry> entry) {
    PlannedCall planned{
        .call = {}, .plans = std::move(plans), .entry = std::move(entry), .counting = {}};
    planned.call.collective = Collective::kAllReduce;
    planned.call.dtype = DType::kInt32;
    return planned;
  }

  Slicing& slicing_;
};

}  // namespace q7x2
