#include "executor/residence/selected.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "executor/residence/device_elements.h"
#include "kernels/codec/sparse_kernels.h"
#include "kernels/cpu/convert.h"

namespace q7x2 {
namespace {

constexpr size_t kWord = 64;
// offset in the result of `mark`
constexpr size_t kMaskAt = DevicePieces::rounded(sizeof(MarkCounts));

/// One region, if the regions are adjacent in memory; otherwise empty.
Region joined(std::span<const Region> regions) {
  Region whole = regions.empty() ? Region{} : Region{regions[0].data, 0};
  for (const Region& region : regions) {
    if (region.data != whole.data + whole.bytes) return {};
    whole.bytes += region.bytes;
  }
  return whole;
}

/// Whether the numbers that are sent are received exactly, even as sums.
bool is_exact(const CodecSpec& spec) {
  return spec.value.kind == ValueKind::kFloat32 && !spec.reselect;
}

size_t mask_bytes(size_t count) {
  return mask_words(count) * sizeof(uint64_t);
}

/// A bit for each of up to 64 numbers: whether it differs from positive zero.
uint64_t nonzero_bits(const float* numbers, size_t count) {
  alignas(kWord) uint8_t flags[kWord] = {};
  for (size_t i = 0; i < count; ++i) flags[i] = float_to_bits(numbers[i]) != 0 ? 1 : 0;
  uint64_t word = 0;
  for (size_t i = 0; i < kWord; i += 8) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, flags + i, sizeof(bytes));
    word |= (bytes * 0x0102040810204080 >> 56) << i;
  }
  return word;
}

/// Reads numbers as fp32, tile by tile.
class Tiles {
 public:
  Tiles(const std::byte* numbers, DType dtype, size_t count)
      : numbers_(numbers), dtype_(dtype), count_(count) {
    if (dtype != DType::kFloat32) floats_.resize(kMarkTile);
  }
  size_t length(size_t tile) const { return std::min(kMarkTile, count_ - tile * kMarkTile); }
  const float* operator[](size_t tile) {
    const std::byte* const from = numbers_ + tile * kMarkTile * element_size(dtype_);
    if (dtype_ == DType::kFloat32) return reinterpret_cast<const float*>(from);
    widen(floats_.data(), from, length(tile), dtype_);
    return floats_.data();
  }

 private:
  const std::byte* numbers_;
  DType dtype_;
  size_t count_;
  std::vector<float> floats_;
};

bool is_input(const Block& block) {
  return block.space == Space::kInput;
}

/// Whether the messages of this rank's contribution contain exactly the gathered elements.
bool sends_only(const Residence::Run& run, const GatheredElements& gathered) {
  const Plan& plan = *run.choice.plan;
  for (const Op& op : plan.ops) {
    if (std::ranges::none_of(plan.sources_of(op), is_input)) continue;
    for (size_t slice = 0; slice < run.slicing.num_slices(); ++slice) {
      const Block& block = op.length_of;
      const size_t count = run.slicing.part(block, slice).bytes / element_size(run.call.dtype);
      const size_t first = run.slicing.first_of_all(block, slice);
      if (count > 0 && !run.call.coding.codec->sends_gathered_only(gathered, first, count,
                                                                   run.slicing.input_elements())) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

bool has_selection_for(const Codec& codec, DType dtype) {
  return is_marked_by_devices(codec.spec()) && is_of_devices(dtype);
}

bool selects_on_device(const Plan& plan, const Codec& codec, DType dtype) {
  if (!has_selection_for(codec, dtype) || plan.num_coded == 0) return false;
  return std::ranges::all_of(plan.ops, [&](const Op& op) {
    const auto sources = plan.sources_of(op);
    const bool gives = op.destination.is_coded() || op.destination.space == Space::kOutput;
    switch (op.kind) {
      case OpKind::kSend:
        return sources[0].is_coded();
      case OpKind::kRecv:
        return op.destination.is_coded();
      case OpKind::kCopy:
        return gives && sources[0].is_coded() != op.destination.is_coded() &&
               (sources[0].is_coded() || is_input(sources[0]));
      case OpKind::kReduce:
        // A second contribution would be encoded together with the error of the first one.
        return gives && std::ranges::any_of(sources, &Block::is_coded) &&
               std::ranges::count_if(sources, is_input) <= 1 &&
               std::ranges::all_of(
                   sources, [](const Block& block) { return block.is_coded() || is_input(block); });
    }
    return false;
  });
}

Selected::Selected(std::shared_ptr<InputLatch> inputs, ResidentDevice device)
    : Residence(std::move(inputs), std::move(device)) {
  enters_ = leaves_ = true;
  selects_ = true;
}

bool Selected::find_regions(const CollectiveCall& call) {
  input_ = joined(call.input);
  output_ = joined(call.output);
  errors_ = call.coding.errors.empty() ? nullptr : call.coding.errors[0];
  return input_.bytes > 0 && output_.bytes > 0 &&
         input_.bytes / element_size(call.dtype) <= ~uint32_t{0};
}

Residence::Next Selected::enter(const Run& run) {
  const CollectiveCall& call = run.call;
  switch (std::exchange(step_, step_ == Step::kMark ? Step::kTake : Step::kTaken)) {
    case Step::kMark:
      if (!selects_on_device(*run.choice.plan, *call.coding.codec, call.dtype) ||
          !find_regions(call)) {
        return Next::kDegrade;
      }
      mark(run);
      return Next::kStep;
    case Step::kTake:
      return take(run) ? Next::kStep : Next::kDegrade;
    default:
      redirect(run);
      return Next::kNothing;
  }
}

void Selected::mark(const Run& run) {
  const CollectiveCall& call = run.call;
  const size_t count = this->count(run);
  WorkStream& stream = *device_->to_host;
  const size_t passes = kMaskAt + mask_bytes(count);
  mask_ = stream.pinned(passes);
  stream.with([&] {
    const size_t tiles = mark_tiles(count) * sizeof(uint32_t);
    const size_t floats = call.dtype == DType::kFloat32 ? 0 : count;
    marked_.memory =
        stream.scratch(DevicePieces::rounded(passes) + DevicePieces::rounded(tiles) +
                       DevicePieces::rounded(floats * sizeof(float)) + mark_scratch_bytes(count));
    DevicePieces pieces(marked_.memory.get());
    std::byte* const head = pieces.take(passes);
    marked_.counts = reinterpret_cast<MarkCounts*>(head);
    marked_.marks = {count, reinterpret_cast<uint64_t*>(head + kMaskAt),
                     reinterpret_cast<uint32_t*>(pieces.take(tiles))};
    marked_.values = DeviceElements(*device_->kernels, call.dtype)
                         .read(input_.data, count, stream.handle(), pieces.take_floats(floats));
    device_->kernels->mark(call.coding.codec->spec(),
                           {marked_.values, errors_, count, call.coding.keys.shared}, marked_.marks,
                           marked_.counts, pieces.take(mark_scratch_bytes(count)), stream.handle());
    stream.copy(mask_.get(), marked_.memory.get(), passes, WorkStream::Way::kToHost);
  });
  device_->traffic->coded.to_host += passes;
}

bool Selected::take(const Run& run) {
  const auto counts = *reinterpret_cast<const MarkCounts*>(mask_.get());
  gathered_ = std::make_shared<GatheredElements>(
      count(run), reinterpret_cast<const uint64_t*>(mask_.get() + kMaskAt));
  if (counts.extreme > 0 || !sends_only(run, *gathered_)) {
    gathered_ = nullptr;
    marked_ = {};
    return false;
  }
  ++device_->traffic->coded.calls;
  WorkStream& stream = *device_->to_host;
  const size_t bytes = gathered_->size() * sizeof(float);
  taken_ = stream.pinned(std::max<size_t>(bytes, 1));
  stream.with([&] {
    const std::shared_ptr<std::byte> taken = stream.scratch(std::max<size_t>(bytes, 1));
    device_->kernels->take(marked_.marks, marked_.values, errors_,
                           reinterpret_cast<float*>(taken.get()), stream.handle());
    if (bytes > 0) stream.copy(taken_.get(), taken.get(), bytes, WorkStream::Way::kToHost);
    marked_ = {};
  });
  device_->traffic->coded.to_host += bytes;
  return true;
}

void Selected::redirect(const Run& run) {
  gathered_->take(reinterpret_cast<const float*>(taken_.get()));
  run.coder->take({.gathered = gathered_});
  CollectiveCall& call = run.call;
  results_ = Recycled<std::byte>(output_.bytes);
  for (Region& region : call.output) region.data = results_.data() + (region.data - output_.data);
  if (is_exact(call.coding.codec->spec())) {
    call.coding.errors.clear();
  } else if (!call.coding.errors.empty()) {
    lost_ = Recycled<float>(count(run));
    std::ranges::fill(lost_, 0.0F);
    for (float*& errors : call.coding.errors) errors = lost_.data() + (errors - errors_);
  }
}

Residence::Next Selected::leave(const Run& run) {
  const DType dtype = run.call.dtype;
  put(results_.data(), dtype, output_.bytes / element_size(dtype), output_.data, /*adds=*/false);
  if (lost_.size() > 0) {
    put(reinterpret_cast<const std::byte*>(lost_.data()), DType::kFloat32, count(run),
        reinterpret_cast<std::byte*>(errors_), /*adds=*/true);
  }
  return Next::kStream;
}

void Selected::put(const std::byte* numbers, DType dtype, size_t count, std::byte* to, bool adds) {
  WorkStream& stream = *device_->to_device;
  Tiles tiles(numbers, dtype, count);
  Recycled<uint64_t> mask(mask_words(count));
  std::vector<uint32_t> before;
  size_t kept = 0;
  for (size_t tile = 0; tile < mark_tiles(count); ++tile) {
    before.push_back(static_cast<uint32_t>(kept));
    const float* const floats = tiles[tile];
    for (size_t i = 0; i < tiles.length(tile); i += kWord) {
      const uint64_t word = nonzero_bits(floats + i, std::min(kWord, tiles.length(tile) - i));
      mask[tile * (kMarkTile / kWord) + i / kWord] = word;
      kept += static_cast<size_t>(std::popcount(word));
    }
  }
  const size_t whole = count * element_size(dtype);
  const size_t ranks_at = DevicePieces::rounded(mask_bytes(count));
  const size_t numbers_at = ranks_at + DevicePieces::rounded(before.size() * sizeof(uint32_t));
  const size_t bytes = numbers_at + kept * sizeof(float);
  if (!adds && bytes >= whole) {
    std::byte* const pinned = written_.emplace_back(stream.pinned(whole)).get();
    std::memcpy(pinned, numbers, whole);
    stream.with([&] { stream.copy(to, pinned, whole, WorkStream::Way::kToDevice); });
    device_->traffic->coded.to_device += whole;
    return;
  }
  // `compact` may write beyond its result.
  std::byte* const pinned =
      written_.emplace_back(stream.pinned(bytes + kMarkTile * sizeof(float))).get();
  std::memcpy(pinned, mask.data(), mask_bytes(count));
  std::memcpy(pinned + ranks_at, before.data(), before.size() * sizeof(uint32_t));
  for (size_t tile = 0; tile < before.size(); ++tile) {
    dispatched_sparse_kernels().compact(
        tiles[tile], mask.data() + tile * (kMarkTile / kWord), tiles.length(tile),
        reinterpret_cast<float*>(pinned + numbers_at) + before[tile]);
  }
  const DeviceElements elements(*device_->kernels, dtype);
  const bool is_wide = elements.is_wide();
  stream.with([&] {
    const size_t floats_at = DevicePieces::rounded(bytes);
    const std::shared_ptr<std::byte> there =
        stream.scratch(floats_at + (is_wide ? 0 : count * sizeof(float)));
    stream.copy(there.get(), pinned, bytes, WorkStream::Way::kToDevice);
    const Marks marks = {count, reinterpret_cast<uint64_t*>(there.get()),
                         reinterpret_cast<uint32_t*>(there.get() + ranks_at)};
    auto* const out = reinterpret_cast<float*>(is_wide ? to : there.get() + floats_at);
    device_->kernels->put(marks, reinterpret_cast<const float*>(there.get() + numbers_at), out,
                          adds, stream.handle());
    if (!is_wide) elements.write(out, count, to, stream.handle());
  });
  device_->traffic->coded.to_device += bytes;
}

}  // namespace q7x2
