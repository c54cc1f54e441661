// What ops do to coded blocks, and what a codec needs to know of the whole tensor first.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "executor/collective/collective.h"
#include "kernels/cpu/convert.h"

namespace q7x2 {
namespace {

BlockCoder::Operand operand(const Block& block, const Region& source) {
  if (block.is_coded()) return {.message = {source.data, source.bytes}};
  return {.elements = source.data, .message = {}, .is_input = block.space == Space::kInput};
}

}  // namespace

/// What `select` does, as a job.
class CollectiveTask::SelectionJob final : public Job {
 public:
  explicit SelectionJob(CollectiveTask& task) : task_(task) {}

 private:
  void work() override { task_.select(/*counts=*/false); }
  CollectiveTask& task_;
};

void CollectiveTask::prepare_coder(bool counts) {
  coder_ = std::make_unique<BlockCoder>(call_.coding, call_.dtype, slicing_.longest_part(),
                                        slicing_.bytes(), is_reduction(call_.collective));
  if (choice_.plan->edges == Edges::kNone) return;
  if (counts) {
    select(counts);
  } else if (call_.coding.codec->traits().selects) {
    selection_ = std::make_unique<SelectionJob>(*this);
  }
}

void CollectiveTask::begin_selection(Locked& locked) {
  is_selecting_ = true;
  enqueue(locked, *selection_, slicing_.input_elements() * element_size(call_.dtype));
}

void CollectiveTask::select(bool counts) {
  const TimePoint began = Clock::now();
  const size_t element = element_size(call_.dtype);
  const std::span<const uint64_t> begins = slicing_.region_begins();
  const size_t count = slicing_.input_elements();
  std::vector<float> chunk(kLargestRead);
  const ReadElements read = [&](size_t first, size_t wanted) -> const float* {
    float* out = chunk.data();
    const auto after = std::ranges::upper_bound(begins, first);
    auto i = static_cast<size_t>(after - begins.begin()) - 1;
    for (; i < call_.input.size() && wanted > 0; ++i) {
      const size_t skipped = first - begins[i];
      const size_t length = std::min<size_t>(wanted, begins[i + 1] - first);
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
  if (counts) {
    counts_ = std::make_shared<std::vector<int32_t>>(
        coder_->count_selected(read, count, granule_of(count, slicing_.longest_part())));
  }
  work_.select += std::chrono::nanoseconds(Clock::now() - began).count();
}

// If the counts failed, so will this task: with its group, or when it is known that a rank has left
// (is_hopeless).
bool CollectiveTask::cut_by_counts() {
  if (slicing_.is_balanced()) return true;
  if (!counting_->done() || counting_->error()) return false;
  slicing_.balance(*counts_);
  return true;
}

bool CollectiveTask::touches_coded(const Op& op) const {
  return op.takes_residual || op.destination.is_coded() ||
         std::ranges::any_of(choice_.plan->sources_of(op), &Block::is_coded);
}

OpJob* CollectiveTask::copy_coded(Locked& locked, Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const Block& block = choice_.plan->sources_of(op)[0];
  const Region source = region(place, block, length);
  const BlockCoder::Place at = coding_place(op, place.slice);
  if (op.takes_residual && !op.destination.is_coded()) {
    return covers(locked, source, length) ? add_residual(step, source, at) : nullptr;
  }
  if (op.destination.is_coded()) {
    if (!covers(locked, source, length)) return nullptr;
    OpJob& job = job_of(step, OpJob::Kind::kEncode, length);
    job.from.push_back(operand(block, source));
    job.at = at;
    job.to = message_of(step);
    return &job;
  }
  const Region destination = writable(place, op.destination, length);
  if (!covers(locked, destination, length)) return nullptr;
  OpJob& job = job_of(step, OpJob::Kind::kDecode, length);
  job.from.push_back({.message = {source.data, source.bytes}});
  job.at = at;
  job.to = destination.data;
  job.inspects = inspects(op);
  return &job;
}

// Until the slice is complete nobody writes to the input: a block without a residual is the input.
OpJob* CollectiveTask::add_residual(Step step, const Region& source, const BlockCoder::Place& at) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  std::byte*& given = place.scratch_at[op.destination.index];
  if (at.errors == nullptr) {
    given = source.data;
    return nullptr;
  }
  const bool is_staged = staging_.carries(op);
  given = is_staged ? staging_.at(step.place, op) : own_scratch(place, op.destination.index);
  if (is_staged) place.staged[op.stage] = StageState::kOnItsWay;
  OpJob& job = job_of(step, OpJob::Kind::kAddResidual, source.bytes);
  job.from.push_back({.elements = source.data, .message = {}});
  job.at = at;
  job.to = given;
  return &job;
}

OpJob* CollectiveTask::fold_coded(Locked& locked, Step step, size_t length) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  const BlockCoder::Place at = coding_place(op, place.slice);
  const bool has_coded = op.destination.is_coded() ||
                         std::ranges::any_of(choice_.plan->sources_of(op), &Block::is_coded);
  if (!has_coded && at.errors == nullptr) return fold(locked, step, length);
  OpJob& job = job_of(step, OpJob::Kind::kFold, length);
  for (const Block& block : choice_.plan->sources_of(op)) {
    const Region source = region(place, block, length);
    if (!block.is_coded() && !covers(locked, source, length)) return nullptr;
    job.from.push_back(operand(block, source));
  }
  job.at = at;
  job.divisor = op.is_final ? call_.divisor : 1;
  if (op.destination.is_coded()) {
    job.kind = OpJob::Kind::kFoldToMessage;
    job.to = message_of(step);
    return &job;
  }
  const Region result = writable(place, op.destination, length);
  if (!covers(locked, result, length)) return nullptr;
  job.to = result.data;
  job.inspects = inspects(op);
  return &job;
}

// The send stages what ranks of this host receive, if the op does not.
std::byte* CollectiveTask::message_of(Step step) {
  Place& place = places_[step.place];
  const Op& op = op_of(step);
  if (!staging_.carries(op) || !residence_->uses_shared_memory()) {
    return own_coded(place, op.destination.index);
  }
  place.staged[op.stage] = StageState::kOnItsWay;
  return staging_.at(step.place, op);
}

BlockCoder::Place CollectiveTask::coding_place(const Op& op, size_t slice) const {
  const Block& block = op.length_of;
  BlockCoder::Place place{slicing_.first_of_all(block, slice), nullptr, op.takes_residual};
  const bool has_errors =
      call_.collective != Collective::kAllGather || block.space == Space::kInput;
  if (!call_.coding.errors.empty() && has_errors) {
    place.errors =
        call_.coding.errors[slicing_.counted_region(block)] + slicing_.first_element(block, slice);
  }
  return place;
}

}  // namespace q7x2
