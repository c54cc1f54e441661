// OpWork for coded blocks.

#include "executor/collective/op_work.h"

namespace q7x2 {
namespace {

BlockCoder::Operand operand(const Block& block, const Region& source) {
  if (block.is_coded()) return {.message = {source.data, source.bytes}};
  return {.elements = source.data, .message = {}, .is_input = block.space == Space::kInput};
}

}  // namespace

OpJob* OpWork::copy_coded(Step step, const Op& op, size_t length) {
  const Block& block = run_.plan().sources_of(op)[0];
  const Region source = blocks_.region(step.place, block, length);
  const BlockCoder::Place at = coding_place(op, blocks_.slice(step.place));
  if (op.takes_residual && !op.destination.is_coded()) {
    check_covers(source, length);
    return add_residual(step, op, source, at);
  }
  if (op.destination.is_coded()) {
    check_covers(source, length);
    OpJob& job = this->job(step, OpJob::Kind::kEncode, length);
    job.from.push_back(operand(block, source));
    job.at = at;
    job.to = message_of(step, op);
    return &job;
  }
  const Region destination = blocks_.writable(step.place, op.destination, length);
  check_covers(destination, length);
  OpJob& job = this->job(step, OpJob::Kind::kDecode, length);
  job.from.push_back({.message = {source.data, source.bytes}});
  job.at = at;
  job.to = destination.data;
  job.inspects = inspects(op);
  return &job;
}

// Nobody writes to the input until the slice is complete. So without residuals the block can be the
// input itself.
OpJob* OpWork::add_residual(Step step, const Op& op, const Region& source,
                            const BlockCoder::Place& at) {
  if (at.errors == nullptr) {
    blocks_.move(step.place, op.destination, source);
    return nullptr;
  }
  std::byte* to = blocks_.begin_stage(step);
  if (to == nullptr) to = blocks_.own_scratch(step.place, op.destination.index);
  blocks_.move(step.place, op.destination, {to, source.bytes});
  OpJob& job = this->job(step, OpJob::Kind::kAddResidual, source.bytes);
  job.from.push_back({.elements = source.data, .message = {}});
  job.at = at;
  job.to = to;
  return &job;
}

OpJob* OpWork::reduce_coded(Step step, const Op& op, size_t length) {
  const BlockCoder::Place at = coding_place(op, blocks_.slice(step.place));
  if (!has_coded(op) && at.errors == nullptr) return reduce(step, op, length);
  OpJob& job = this->job(step, OpJob::Kind::kFold, length);
  for (const Block& block : run_.plan().sources_of(op)) {
    const Region source = blocks_.region(step.place, block, length);
    if (!block.is_coded()) check_covers(source, length);
    job.from.push_back(operand(block, source));
  }
  job.at = at;
  job.divisor = op.is_final ? run_.call().divisor : 1;
  if (op.destination.is_coded()) {
    job.kind = OpJob::Kind::kFoldToMessage;
    job.to = message_of(step, op);
    return &job;
  }
  const Region result = blocks_.writable(step.place, op.destination, length);
  check_covers(result, length);
  job.to = result.data;
  job.inspects = inspects(op);
  return &job;
}

// If the op does not write to its stage, the send copies the message there for ranks of this host.
std::byte* OpWork::message_of(Step step, const Op& op) {
  std::byte* const staged =
      run_.residence().uses_shared_memory() ? blocks_.begin_stage(step) : nullptr;
  return staged != nullptr ? staged
                           : blocks_.room_for_message(step.place, op.destination.index).data;
}

BlockCoder::Place OpWork::coding_place(const Op& op, size_t slice) const {
  const CollectiveCall& call = run_.call();
  const Slicing& slicing = run_.slicing();
  const Block& block = op.length_of;
  BlockCoder::Place place{slicing.first_of_all(block, slice), nullptr, op.takes_residual};
  const bool has_errors = call.collective != Collective::kAllGather || block.space == Space::kInput;
  if (!call.coding.errors.empty() && has_errors) {
    place.errors =
        call.coding.errors[slicing.counted_region(block)] + slicing.first_element(block, slice);
  }
  return place;
}

}  // namespace q7x2
