// Where blocks lie, and what ops do to their elements.
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "executor/collective.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"

namespace q7x2 {
namespace {

// A multiple of every element's size; with a few operands it stays in the L1 cache.
constexpr size_t kTile = 4096;

}  // namespace

Region CollectiveTask::region(const Place& place, const Block& block, size_t length) const {
  if (block.is_coded()) {
    return place.coded_at[block.index];
  }
  if (block.space == Space::kScratch) {
    return {place.scratch_at[block.index], length};
  }
  return slicing_.part(block, place.slice);
}

Region CollectiveTask::writable(Place& place, const Block& block, size_t length) const {
  if (block.space == Space::kScratch) {
    place.scratch_at[block.index] = own_scratch(place, block.index);
  }
  return region(place, block, length);
}

bool CollectiveTask::covers(const Region& region, size_t length) {
  if (region.bytes >= length) return true;
  end_group(Error(ErrorCode::kInternal, name() + ": " + choice_.plan->algorithm + " would use " +
                                            std::to_string(length) + " bytes of a block of " +
                                            std::to_string(region.bytes)));
  return false;
}

void CollectiveTask::copy(Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const Region source = region(place, choice_.plan->sources_of(op)[0], length);
  const Region destination = writable(place, op.destination, length);
  if (covers(source, length) && covers(destination, length) && source.data != destination.data) {
    copy_bytes(destination.data, source.data, length);
  }
}

// What goes on to others is put into shared memory tile by tile, as it leaves the reduction: from
// the nearest cache.
void CollectiveTask::fold(Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const std::span<const Block> sources = choice_.plan->sources_of(op);
  std::array<const void*, 16> few;
  std::vector<const void*> many;
  std::span<const void*> operands;
  if (op.num_sources <= few.size()) {
    operands = std::span(few.data(), op.num_sources);
  } else {
    many.resize(op.num_sources);
    operands = many;
  }
  size_t shortest = length;
  std::ranges::transform(sources, operands.begin(), [&](const Block& block) {
    const Region source = region(place, block, length);
    shortest = std::min(shortest, source.bytes);
    return source.data;
  });
  const Region destination = writable(place, op.destination, length);
  shortest = std::min(shortest, destination.bytes);
  if (!covers({nullptr, shortest}, length)) return;
  std::byte* result = destination.data;
  const int divisor = op.is_final ? call_.divisor : 1;
  const size_t element = element_size(call_.dtype);
  if (length <= HostChannel::kInlineBytes || !staging_.carries(op)) {
    reduce(result, operands, length / element, call_.dtype, call_.reduce, divisor);
    return;
  }
  std::byte* const stage = staging_.at(step.place, op);
  for (size_t begin = 0; begin < length; begin += kTile) {
    const size_t tile = std::min(kTile, length - begin);
    reduce(result + begin, operands, tile / element, call_.dtype, call_.reduce, divisor);
    copy_bytes(stage + begin, result + begin, tile);
    for (const void*& operand : operands) {
      operand = static_cast<const std::byte*>(operand) + tile;
    }
  }
  place.staged[op.stage] = true;
}

}  // namespace q7x2
