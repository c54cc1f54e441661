#include "plan/ir/owner_ranges.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace q7x2 {
namespace {

// The largest number of elements that share a scale, or a block of a selection.
constexpr size_t kLeastGranule = 1024;
constexpr size_t kMostGranules = 4096;
constexpr size_t kGranulesAPart = 16;
// The target is a quarter above the mean density, so that random variations do not cut a part
// short.
constexpr uint64_t kSlack = 4;

}  // namespace

size_t granule_of(size_t elements, size_t longest) {
  const size_t whole = std::bit_floor(longest);
  const size_t enough = std::bit_ceil(std::max<size_t>(elements / kMostGranules, 1));
  const size_t fine = std::max(whole / kGranulesAPart, kLeastGranule);
  return std::min(whole, std::clamp(enough, kLeastGranule, fine));
}

OwnerRanges::OwnerRanges(std::span<const int32_t> counts, size_t granule, size_t elements,
                         size_t parts, size_t longest)
    : parts_(parts), begins_({0}) {
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const uint64_t mean = (total + parts - 1) / parts;
  const uint64_t full_parts = std::max<uint64_t>(elements / longest, 1);
  const uint64_t target = total / full_parts + total / full_parts / kSlack + 1;
  const size_t most = longest / granule;

  std::vector<uint64_t> given(parts);  // selected elements per owner so far
  size_t next = 0;
  while (next < counts.size()) {
    const uint64_t level = std::min(*std::ranges::max_element(given) + target, mean);
    for (uint64_t& owners : given) {
      const size_t end = std::min(counts.size(), next + most);
      while (next < end && (owners < level || counts[next] == 0)) {
        owners += static_cast<uint64_t>(counts[next++]);
      }
      begins_.push_back(std::min(next * granule, elements));
    }
  }
}

}  // namespace q7x2
