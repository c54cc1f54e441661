#include "executor/collective/call_check.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace q7x2 {
namespace {

/// The indices of the regions between which a rank moves its own part.
struct Own {
  size_t input = 0;
  size_t output = 0;
};

bool has_own(const CollectiveCall& call, int rank) {
  return !is_flat(call.collective) && call.collective != Collective::kBarrier &&
         (!is_rooted(call.collective) || call.root == rank);
}

Own own_of(const CollectiveCall& call, int rank) {
  const auto r = static_cast<size_t>(rank);
  return {call.input.size() > 1 ? r : 0, call.output.size() > 1 ? r : 0};
}

void expect_regions(const char* what, const std::vector<Region>& regions, size_t expected,
                    const CollectiveCall& call) {
  if (regions.size() != expected) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(to_string(call.collective)) + ": expected " + std::to_string(expected) +
                    " " + what + " regions, got " + std::to_string(regions.size()));
  }
}

}  // namespace

void check_call(const CollectiveCall& call, int rank, int world_size) {
  const bool is_vote = call.coding && !call.coding.codec->traits().keeps_error;
  const EdgeWish edges = call.coding.edges;
  if (is_vote && edges != EdgeWish::kAuto && edges != EdgeWish::kAll) {
    throw Error(ErrorCode::kInvalidArgument,
                "codec '" + call.coding.codec->name() +
                    "' is a vote of all ranks: expected edges auto or all, got " +
                    to_string(edges));
  }
  const auto n = static_cast<size_t>(world_size);
  const bool is_root = call.root == rank;
  size_t inputs = 1;
  size_t outputs = 1;
  switch (call.collective) {
    case Collective::kAllGather:
      outputs = n;
      break;
    case Collective::kReduceScatter:
      inputs = n;
      break;
    case Collective::kAllToAll:
      inputs = outputs = n;
      break;
    case Collective::kGather:
      outputs = is_root ? n : 0;
      break;
    case Collective::kScatter:
      inputs = is_root ? n : 0;
      break;
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
      break;
  }
  expect_regions("input", call.input, inputs, call);
  expect_regions("output", call.output, outputs, call);
  if (is_flat(call.collective) && call.input[0].bytes != call.output[0].bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(to_string(call.collective)) + ": the output has " +
                    std::to_string(call.output[0].bytes) + " bytes, the input " +
                    std::to_string(call.input[0].bytes));
  }
  if (!has_own(call, rank)) return;
  const Own own = own_of(call, rank);
  const size_t given = call.input[own.input].bytes;
  const size_t taken = call.output[own.output].bytes;
  if (given != taken) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(to_string(call.collective)) + ": rank " + std::to_string(rank) +
                    " sends itself " + std::to_string(given) + " bytes, but has room for " +
                    std::to_string(taken) + " bytes from itself");
  }
}

bool overlaps(const CollectiveCall& call, int rank) {
  if (is_flat(call.collective) || call.collective == Collective::kBarrier) return false;
  constexpr std::less<const std::byte*> before;
  const auto end_of = [](const Region& region) { return region.data + region.bytes; };

  // Usually all inputs are before or after all outputs, which is cheap to check.
  const auto hull = [&](const std::vector<Region>& regions) {
    Region all;
    const std::byte* end = nullptr;
    for (const Region& region : regions) {
      if (region.bytes == 0) continue;
      if (end == nullptr || before(region.data, all.data)) all.data = region.data;
      if (end == nullptr || before(end, end_of(region))) end = end_of(region);
    }
    all.bytes = end == nullptr ? 0 : static_cast<size_t>(end - all.data);
    return all;
  };
  const auto meet = [&](const Region& a, const Region& b) {
    return a.bytes > 0 && b.bytes > 0 && before(a.data, end_of(b)) && before(b.data, end_of(a));
  };
  if (!meet(hull(call.input), hull(call.output))) return false;

  const Own own = own_of(call, rank);
  const bool in_place =
      has_own(call, rank) && call.input[own.input].data == call.output[own.output].data;
  std::vector<Region> outputs;
  for (size_t i = 0; i < call.output.size(); ++i) {
    if (call.output[i].bytes > 0 && !(in_place && i == own.output))
      outputs.push_back(call.output[i]);
  }
  std::sort(outputs.begin(), outputs.end(),
            [&](const Region& a, const Region& b) { return before(a.data, b.data); });
  // For each output the largest end of it and all outputs before it.
  std::vector<const std::byte*> ends;
  for (const Region& output : outputs) {
    const std::byte* end = end_of(output);
    ends.push_back(ends.empty() || before(ends.back(), end) ? end : ends.back());
  }
  const auto meets_output = [&](const Region& input) {
    if (input.bytes == 0) return false;
    const auto after = std::lower_bound(
        outputs.begin(), outputs.end(), end_of(input),
        [&](const Region& output, const std::byte* end) { return before(output.data, end); });
    return after != outputs.begin() &&
           before(input.data, ends[static_cast<size_t>(after - outputs.begin()) - 1]);
  };
  for (size_t i = 0; i < call.input.size(); ++i) {
    const Region& input = call.input[i];
    if (meets_output(input)) return true;
    if (in_place && i != own.input && meet(input, call.output[own.output])) return true;
  }
  return false;
}

}  // namespace q7x2
