// What ops do to coded blocks, and what a codec needs to know of the whole tensor first.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "executor/collective.h"
#include "kernels/convert.h"

namespace q7x2 {
namespace {

BlockCoder::Operand operand(const Block& block, const Region& source) {
  if (block.is_coded()) return {.message = {source.data, source.bytes}};
  return {.elements = source.data, .message = {}, .is_input = block.space == Space::kInput};
}

}  // namespace

void CollectiveTask::prepare_coder(bool counts) {
  coder_ = std::make_unique<BlockCoder>(call_.coding, call_.dtype, slicing_.longest_part(),
                                        slicing_.bytes(), is_reduction(call_.collective));
  region_begins_.push_back(0);
  for (const Region& region : call_.input) {
    region_begins_.push_back(region_begins_.back() + region.bytes / element_size(call_.dtype));
  }
  if (choice_.plan->edges == Edges::kNone) return;
  if (call_.coding.codec->traits().selects || counts) select(counts);
}

void CollectiveTask::select(bool counts) {
  const size_t element = element_size(call_.dtype);
  const size_t count = region_begins_.back();
  std::vector<float> chunk(kLargestRead);
  const ReadElements read = [&](size_t first, size_t wanted) -> const float* {
    float* out = chunk.data();
    const auto after = std::ranges::upper_bound(region_begins_, first);
    auto i = static_cast<size_t>(after - region_begins_.begin()) - 1;
    for (; i < call_.input.size() && wanted > 0; ++i) {
      const size_t skipped = first - region_begins_[i];
      const size_t length = std::min<size_t>(wanted, region_begins_[i + 1] - first);
      const std::byte* const source = call_.input[i].data + skipped * element;
      if (call_.dtype == DType::kFloat32 && call_.coding.errors.empty() && length == wanted &&
          out == chunk.data()) {
        return reinterpret_cast<const float*>(source);
      }
      widen(out, source, length, call_.dtype);
      if (!call_.coding.errors.empty()) {
        const float* errors = call_.coding.errors[i] + skipped;
        for (size_t j = 0; j < length; ++j) out[j] += errors[j];
      }
      out += length;
      wanted -= length;
      first += length;
    }
    return chunk.data();
  };
  coder_->select(read, count);
  if (!counts) return;
  counts_ = std::make_shared<std::vector<int32_t>>(
      coder_->count_selected(read, count, granule_of(count, slicing_.longest_part())));
}

// If the counts failed, so will this task with its group.
bool CollectiveTask::cut_by_counts() {
  if (!counting_ || slicing_.is_balanced()) return true;
  if (!counting_->done() || counting_->error()) return false;
  slicing_.balance(*counts_);
  return true;
}

bool CollectiveTask::touches_coded(const Op& op) const {
  return op.takes_residual || op.destination.is_coded() ||
         std::ranges::any_of(choice_.plan->sources_of(op), &Block::is_coded);
}

void CollectiveTask::copy_coded(Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const Block& block = choice_.plan->sources_of(op)[0];
  const Region source = region(place, block, length);
  const size_t count = length / element_size(call_.dtype);
  const BlockCoder::Place at = coding_place(op, place.slice);
  if (op.takes_residual && !op.destination.is_coded()) {
    if (covers(source, length)) give(step, source, at);
    return;
  }
  if (op.destination.is_coded()) {
    if (!covers(source, length)) return;
    std::byte* const message = message_of(step);
    place.coded_at[op.destination.index] = {
        message, coder_->encode(operand(block, source), count, at, message)};
    return;
  }
  const Region destination = writable(place, op.destination, length);
  if (!covers(destination, length)) return;
  decoding([&] { coder_->decode({source.data, source.bytes}, count, at, destination.data); });
}

// Until the slice is complete nobody writes to the input: a block without a residual is the input.
void CollectiveTask::give(Step step, const Region& source, const BlockCoder::Place& at) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  std::byte*& given = place.scratch_at[op.destination.index];
  if (at.errors == nullptr) {
    given = source.data;
    return;
  }
  const bool is_staged = staging_.carries(op);
  given = is_staged ? staging_.at(step.place, op) : own_scratch(place, op.destination.index);
  coder_->give(at, source.bytes / element_size(call_.dtype), source.data, given);
  if (is_staged) place.staged[op.stage] = true;
}

void CollectiveTask::fold_coded(Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const BlockCoder::Place at = coding_place(op, place.slice);
  const bool has_coded = op.destination.is_coded() ||
                         std::ranges::any_of(choice_.plan->sources_of(op), &Block::is_coded);
  if (!has_coded && at.errors == nullptr) {
    fold(step, length);
    return;
  }
  std::vector<BlockCoder::Operand> operands;
  for (const Block& block : choice_.plan->sources_of(op)) {
    const Region source = region(place, block, length);
    if (!block.is_coded() && !covers(source, length)) return;
    operands.push_back(operand(block, source));
  }
  const size_t count = length / element_size(call_.dtype);
  const int divisor = op.is_final ? call_.divisor : 1;
  decoding([&] {
    if (op.destination.is_coded()) {
      std::byte* const message = message_of(step);
      place.coded_at[op.destination.index] = {
          message, coder_->fold_to_message(operands, count, at, divisor, message)};
    } else if (const Region result = writable(place, op.destination, length);
               covers(result, length)) {
      coder_->fold(operands, count, at, divisor, result.data);
    }
  });
}

// Messages of other ranks are checked as they are read.
template <class Body>
void CollectiveTask::decoding(Body body) {
  try {
    body();
  } catch (const Error& error) {
    end_group(Error(error.code(), std::string(error.what()) + ", in " + name(), error.rank()));
  }
}

std::byte* CollectiveTask::message_of(Step step) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (!staging_.carries(op)) return own_coded(place, op.destination.index);
  place.staged[op.stage] = true;
  return staging_.at(step.place, op);
}

void CollectiveTask::inspect(Step step) {
  const Op& op = op_of(step);
  if (op.kind == OpKind::kSend || !op.destination.is_part()) return;
  const Region written = slicing_.part(op.destination, places_[step.place].slice);
  coder_->inspect(written.data, written.bytes / element_size(call_.dtype));
}

// Elements are counted through all inputs of a reduction, one after the other: there a part has one
// index on all ranks. What is gathered is counted within its part.
BlockCoder::Place CollectiveTask::coding_place(const Op& op, size_t slice) const {
  const Block& block = op.length_of;
  const size_t first = slicing_.first_element(block, slice);
  const size_t region = call_.collective == Collective::kReduceScatter ? block.index : 0;
  BlockCoder::Place place{region_begins_[region] + first, nullptr, op.takes_residual};
  const bool has_errors =
      call_.collective != Collective::kAllGather || block.space == Space::kInput;
  if (!call_.coding.errors.empty() && has_errors) {
    place.errors = call_.coding.errors[region] + first;
  }
  return place;
}

}  // namespace q7x2
