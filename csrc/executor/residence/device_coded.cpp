#include "executor/residence/device_coded.h"

#include <algorithm>
#include <span>
#include <utility>

#include "executor/call/job_completion.h"
#include "executor/call/op_job.h"
#include "kernels/codec/random.h"

namespace q7x2 {
namespace {

bool is_element(const Block& block) {
  return block.is_part();
}

bool makes_message(const OpJob& job) {
  return job.kind == OpJob::Kind::kEncode || job.kind == OpJob::Kind::kFoldToMessage;
}

// Whether this rank's contribution goes through the codec before it is added. Only for votes:
// `runs_on_device` rejects sums whose sources are all elements.
bool codes_own(const OpJob& job) {
  const bool adds = job.kind == OpJob::Kind::kFold || job.kind == OpJob::Kind::kFoldToMessage;
  return adds && job.call->coding.codec->traits().codes_own;
}

ValueBlock block_of(const OpJob& job, size_t count) {
  const CodecKeys& keys = job.call->coding.keys;
  return {.count = count,
          .first = job.at.first,
          .add = job.at.errors,
          .error = job.at.errors,
          .shared_key = keys.shared,
          .rounding_key = keys.rounding};
}

bool can_run(const Residence::Run& run) {
  const Coding& coding = run.call.coding;
  return runs_on_device(*run.choice.plan, *coding.codec, run.call.dtype, !coding.errors.empty());
}

}  // namespace

bool has_kernels_for(const Codec& codec, DType dtype) {
  return codec.is_value_stage() && is_of_devices(dtype);
}

bool runs_on_device(const Plan& plan, const Codec& codec, DType dtype, bool has_errors) {
  if (!has_kernels_for(codec, dtype) || plan.num_coded == 0) return false;
  return std::ranges::all_of(plan.ops, [&](const Op& op) {
    const auto sources = plan.sources_of(op);
    switch (op.kind) {
      case OpKind::kSend:
        return sources[0].is_coded();
      case OpKind::kRecv:
        return op.destination.is_coded();
      case OpKind::kCopy:
        return sources[0].is_coded() != op.destination.is_coded() &&
               (is_element(sources[0]) || is_element(op.destination));
      case OpKind::kReduce:
        // A sum must not add its own error to a residual that already contains the contribution's
        // error.
        return op.num_sources <= kMostFolded &&
               (!op.destination.is_coded() || op.takes_residual || !has_errors) &&
               std::ranges::all_of(
                   sources,
                   [](const Block& block) { return block.is_coded() || is_element(block); }) &&
               (op.destination.is_coded() ||
                (is_element(op.destination) && std::ranges::any_of(sources, &Block::is_coded)));
    }
    return false;
  });
}

DeviceCoded::DeviceCoded(std::shared_ptr<InputLatch> inputs, ResidentDevice device)
    : Residence(std::move(inputs), std::move(device)) {
  uses_shared_memory_ = false;  // the device reads and writes only pinned memory
  enters_ = true;
  coded_worker_ = this;
}

void DeviceCoded::prepare(const Run& run) {
  if (!can_run(run)) return;
  take_memory(run);
  enters_ = false;
}

Residence::Next DeviceCoded::enter(const Run& run) {
  if (!can_run(run)) return Next::kDegrade;
  take_memory(run);
  return Next::kNothing;
}

void DeviceCoded::take_memory(const Run& run) {
  const size_t messages = static_cast<size_t>(run.choice.window) * run.message_bytes();
  pinned_ = device_->to_host->pinned(kFlagBytes + messages);
  *found() = 0;
  ++device_->traffic->coded.calls;
}

Residence::Memory DeviceCoded::memory(const Run& run, size_t place, ScratchPool&) const {
  return {.messages = pinned_.get() + kFlagBytes + place * run.message_bytes()};
}

void DeviceCoded::check(const OpJob& job, size_t count) const {
  for (const BlockCoder::Operand& operand : job.from) {
    if (operand.elements == nullptr) job.call->coding.codec->body_of(operand.message, count);
  }
}

// Jobs that depend on each other are never in progress at the same time, so their streams need no
// order.
WorkStream& DeviceCoded::stream_of(const OpJob& job) const {
  return job.kind == OpJob::Kind::kEncode ? *device_->to_host : *device_->to_device;
}

size_t DeviceCoded::scratch_bytes(const OpJob& job, size_t count) const {
  const DeviceElements elements(*device_->kernels, job.call->dtype);
  const size_t body =
      DevicePieces::rounded(value_bytes(job.call->coding.codec->spec().value, count));
  const size_t floats = elements.is_wide() ? 0 : DevicePieces::rounded(count * sizeof(float));
  size_t bytes = makes_message(job) ? body : floats;
  for (const BlockCoder::Operand& operand : job.from) {
    if (operand.elements != nullptr) bytes += floats;
    if (operand.elements == nullptr || codes_own(job)) bytes += body;
  }
  return bytes;
}

FoldSource DeviceCoded::source_of(const OpJob& job, const BlockCoder::Operand& operand,
                                  size_t count, WorkStream& stream, DevicePieces& pieces) const {
  const Codec& codec = *job.call->coding.codec;
  if (operand.elements == nullptr) {
    const std::span<const std::byte> body = codec.body_of(operand.message, count);
    std::byte* const there = pieces.take(body.size());
    stream.copy(there, body.data(), body.size(), WorkStream::Way::kToDevice);
    device_->traffic->coded.to_device += body.size();
    return {.body = there};
  }
  const DeviceElements elements(*device_->kernels, job.call->dtype);
  float* const floats = elements.is_wide() ? nullptr : pieces.take_floats(count);
  const float* const values = elements.read(operand.elements, count, stream.handle(), floats);
  if (!codes_own(job)) return {.values = values};
  ValueBlock block = block_of(job, count);
  block.values = values;
  std::byte* const body = pieces.take(value_bytes(codec.spec().value, count));
  device_->kernels->encode(codec.spec().value, block, body, stream.handle());
  return {.body = body};
}

size_t DeviceCoded::enqueue(const OpJob& job, size_t count) {
  const ValueSpec& spec = job.call->coding.codec->spec().value;
  const size_t body_bytes = value_bytes(spec, count);
  const DeviceElements elements(*device_->kernels, job.call->dtype);
  size_t length = 0;
  WorkStream& stream = stream_of(job);
  stream.with([&] {
    const std::shared_ptr<std::byte> memory = stream.scratch(scratch_bytes(job, count));
    DevicePieces pieces(memory.get());
    Fold fold;
    for (const BlockCoder::Operand& operand : job.from) {
      fold.of[fold.num++] = source_of(job, operand, count, stream, pieces);
    }
    std::byte* body = nullptr;  // the result: a message, or numbers
    float* numbers = nullptr;
    if (makes_message(job)) {
      body = pieces.take(body_bytes);
    } else {
      numbers = elements.is_wide() ? reinterpret_cast<float*>(job.to) : pieces.take_floats(count);
    }
    ValueBlock block = block_of(job, count);
    switch (job.kind) {
      case OpJob::Kind::kEncode:
        block.values = fold.of[0].values;
        device_->kernels->encode(spec, block, body, stream.handle());
        break;
      case OpJob::Kind::kDecode:
        device_->kernels->decode(spec, fold.of[0].body, numbers, count, block.first,
                                 block.shared_key, /*add=*/false, stream.handle());
        break;
      case OpJob::Kind::kFold:
        fold.divisor = static_cast<float>(job.divisor);
        if (!job.at.takes_residual) block.add = block.error = nullptr;
        device_->kernels->fold(spec, fold, block, {.values = numbers}, stream.handle());
        break;
      default:
        fold.divisor = static_cast<float>(job.divisor);
        block.error_scale = fold.divisor;
        block.rounding_key = mix_keys(job.call->coding.keys.rounding, BlockCoder::kSumRounding);
        device_->kernels->fold(spec, fold, block, {.body = body}, stream.handle());
        break;
    }
    if (body != nullptr) {
      std::byte* const to = job.call->coding.codec->write_header(job.to, count);
      stream.copy(to, body, body_bytes, WorkStream::Way::kToHost);
      device_->traffic->coded.to_host += body_bytes;
      length = static_cast<size_t>(to - job.to) + body_bytes;
    } else if (!elements.is_wide()) {
      elements.write(numbers, count, job.to, stream.handle());
    }
    if (job.inspects) {
      device_->kernels->find_nonfinite(elements.read(job.to, count, stream.handle(), numbers),
                                       count, found(), stream.handle());
    }
  });
  return length;
}

void DeviceCoded::complete_later(OpJob& job, const std::shared_ptr<Task>& task) {
  complete_after(stream_of(job), job, task);
}

}  // namespace q7x2
