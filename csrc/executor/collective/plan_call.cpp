#include "executor/collective/plan_call.h"

#include <utility>

#include "base/build_id.h"
#include "executor/collective/call_check.h"
#include "executor/collective/codec_rates.h"
#include "kernels/cpu/reduce.h"
#include "plan/ir/owner_ranges.h"

namespace q7x2 {
namespace {

/// Whether the call's codec balances parts, provided that there is anything to balance.
bool balances(const CollectiveCall& call) {
  return call.coding && call.coding.codec->spec().balanced &&
         call.collective == Collective::kAllReduce;
}

/// Number of counts by which the parts are balanced; 0: they are not balanced.
size_t counts_of(const CollectiveCall& call, const Choice& choice) {
  if (choice.plan->edges == Edges::kNone) return 0;
  const size_t parts = choice.plan->part_weights.size();
  const size_t elements = call.bytes() / element_size(call.dtype);
  const size_t granule = granule_of(elements, choice.part_bytes / element_size(call.dtype));
  // With fewer granules there is no choice where to cut.
  if (parts < 2 || elements < 2 * parts * granule) return 0;
  return (elements + granule - 1) / granule;
}

}  // namespace

std::string environment_of_plans() {
  return "q7x2 " + build_id() + " on " + reduce_isa();
}

CallShape shape_of(const CollectiveCall& call) {
  CallShape shape;
  shape.collective = call.collective;
  shape.root = call.root;
  shape.bytes = call.uneven ? CallShape::kUneven : call.bytes();
  shape.wide_accumulation = is_reduction(call.collective) && accumulates_wider(call.dtype);
  shape.algorithms = call.algorithms;
  shape.is_direct = call.is_direct;
  if (call.coding) add_codec(shape, *call.coding.codec, call.dtype, call.coding.edges);
  return shape;
}

void add_codec(CallShape& shape, const Codec& codec, DType dtype, EdgeWish edges) {
  const bool is_vote = !codec.traits().keeps_error;
  shape.codec = codec.name();
  shape.dtype = dtype;
  // If ranks summed first and then compressed, they would share one vote.
  shape.edges = is_vote ? EdgeWish::kAll : edges;
  shape.exact_sums = codec.traits().exact_sums;
  shape.sums_by_owners = is_vote || codec.spec().reselect;
  shape.coding = [&codec, dtype](const Fabric& fabric) {
    return coding_cost(codec, dtype, fabric);
  };
}

// Whether an all-reduce of counts precedes the call depends on the choice. So each rank needs the
// choice at once, and makes it by itself.
PlannedCall plan_call(CollectiveCall call, std::shared_ptr<PlanCache> plans, int rank,
                      int world_size) {
  check_call(call, rank, world_size);
  PlannedCall planned;
  if (!balances(call)) {
    planned.entry = plans->open(shape_of(call));
  } else {
    planned.entry = plans->open_alone(shape_of(call));
    if (const size_t counts = counts_of(call, planned.entry->choice()); counts > 0) {
      planned.counting = plans->open_alone(
          {.collective = Collective::kAllReduce, .bytes = counts * element_size(DType::kInt32)});
    }
  }
  planned.call = std::move(call);
  planned.plans = std::move(plans);
  return planned;
}

PlannedCall plan_call_alone(CollectiveCall call, std::shared_ptr<PlanCache> plans, int rank,
                            int world_size) {
  check_call(call, rank, world_size);
  std::shared_ptr<PlanCache::Entry> entry = plans->open_alone(shape_of(call));
  return {.call = std::move(call),
          .plans = std::move(plans),
          .entry = std::move(entry),
          .counting = nullptr};
}

}  // namespace q7x2
