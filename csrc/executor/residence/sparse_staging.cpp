#include "executor/residence/sparse_staging.h"

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
constexpr size_t kMaskAt = DevicePieces::rounded(sizeof(MarkCounts));  // in what `mark` returns

/// Regions one behind another are one; else it is empty.
Region joined(std::span<const Region> regions) {
  Region whole = regions.empty() ? Region{} : Region{regions[0].data, 0};
  for (const Region& region : regions) {
    if (region.data != whole.data + whole.bytes) return {};
    whole.bytes += region.bytes;
  }
  return whole;
}

/// Numbers that are sent are received as they are, also as sums.
bool is_exact(const CodecSpec& spec) {
  return spec.value.kind == ValueKind::kFloat32 && !spec.reselect;
}

size_t mask_bytes(size_t count) {
  return mask_words(count) * sizeof(uint64_t);
}

/// A bit for each of up to 64 numbers that is not positive zero.
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
        // A second contribution would be coded with what the first one has lost.
        return gives && std::ranges::any_of(sources, &Block::is_coded) &&
               std::ranges::count_if(sources, is_input) <= 1 &&
               std::ranges::all_of(
                   sources, [](const Block& block) { return block.is_coded() || is_input(block); });
    }
    return false;
  });
}

bool SparseStaging::takes(const CollectiveCall& call) {
  const size_t bytes = joined(call.input).bytes;
  return bytes > 0 && joined(call.output).bytes > 0 &&
         bytes / element_size(call.dtype) <= ~uint32_t{0};
}

SparseStaging::SparseStaging(ResidentDevice device, const CollectiveCall& call, Fits fits)
    : device_(std::move(device)),
      call_(call),
      input_(joined(call.input)),
      output_(joined(call.output)),
      fits_(std::move(fits)) {}

float* SparseStaging::errors() const {
  return call_.coding.errors.empty() ? nullptr : call_.coding.errors[0];
}

bool SparseStaging::read() {
  if (dense_) return dense_->read();
  switch (std::exchange(step_, step_ == Step::kMark ? Step::kTake : Step::kTaken)) {
    case Step::kMark:
      mark();
      return true;
    case Step::kTake:
      if (take()) return true;
      dense_ = std::make_unique<WholeStaging>(device_, call_);
      return dense_->read();
    default:
      return false;
  }
}

void SparseStaging::mark() {
  WorkStream& stream = *device_.to_host;
  const size_t passes = kMaskAt + mask_bytes(count());
  mask_ = stream.pinned(passes);
  stream.with([&] {
    const size_t tiles = mark_tiles(count()) * sizeof(uint32_t);
    const size_t floats = call_.dtype == DType::kFloat32 ? 0 : count();
    marked_.memory =
        stream.scratch(DevicePieces::rounded(passes) + DevicePieces::rounded(tiles) +
                       DevicePieces::rounded(floats * sizeof(float)) + mark_scratch_bytes(count()));
    DevicePieces pieces(marked_.memory.get());
    std::byte* const head = pieces.take(passes);
    marked_.counts = reinterpret_cast<MarkCounts*>(head);
    marked_.marks = {count(), reinterpret_cast<uint64_t*>(head + kMaskAt),
                     reinterpret_cast<uint32_t*>(pieces.take(tiles))};
    marked_.values = DeviceElements(*device_.kernels, call_.dtype)
                         .read(input_.data, count(), stream.handle(), pieces.take_floats(floats));
    device_.kernels->mark(
        call_.coding.codec->spec(), {marked_.values, errors(), count(), call_.coding.keys.shared},
        marked_.marks, marked_.counts, pieces.take(mark_scratch_bytes(count())), stream.handle());
    stream.copy(mask_.get(), marked_.memory.get(), passes, WorkStream::Way::kToHost);
  });
  device_.traffic->coded.to_host += passes;
}

bool SparseStaging::take() {
  const auto counts = *reinterpret_cast<const MarkCounts*>(mask_.get());
  gathered_ = std::make_shared<GatheredElements>(
      count(), reinterpret_cast<const uint64_t*>(mask_.get() + kMaskAt));
  if (counts.extreme > 0 || !fits_(*gathered_)) {
    gathered_ = nullptr;
    marked_ = {};
    return false;
  }
  ++device_.traffic->coded.calls;
  WorkStream& stream = *device_.to_host;
  const size_t bytes = gathered_->size() * sizeof(float);
  taken_ = stream.pinned(std::max<size_t>(bytes, 1));
  stream.with([&] {
    const std::shared_ptr<std::byte> taken = stream.scratch(std::max<size_t>(bytes, 1));
    device_.kernels->take(marked_.marks, marked_.values, errors(),
                          reinterpret_cast<float*>(taken.get()), stream.handle());
    if (bytes > 0) stream.copy(taken_.get(), taken.get(), bytes, WorkStream::Way::kToHost);
    marked_ = {};
  });
  device_.traffic->coded.to_host += bytes;
  return true;
}

std::shared_ptr<const GatheredElements> SparseStaging::redirect(CollectiveCall& call) {
  if (dense_) return dense_->redirect(call);
  gathered_->take(reinterpret_cast<const float*>(taken_.get()));
  results_ = Recycled<std::byte>(output_.bytes);
  for (Region& region : call.output) region.data = results_.data() + (region.data - output_.data);
  if (is_exact(call.coding.codec->spec())) {
    call.coding.errors.clear();
  } else if (!call.coding.errors.empty()) {
    lost_ = Recycled<float>(count());
    std::ranges::fill(lost_, 0.0F);
    for (float*& errors : call.coding.errors) errors = lost_.data() + (errors - this->errors());
  }
  return gathered_;
}

bool SparseStaging::write() {
  if (dense_) return dense_->write();
  if (std::exchange(is_written_, true)) return false;
  put(results_.data(), call_.dtype, output_.bytes / element_size(call_.dtype), output_.data,
      /*adds=*/false);
  if (lost_.size() > 0) {
    put(reinterpret_cast<const std::byte*>(lost_.data()), DType::kFloat32, count(),
        reinterpret_cast<std::byte*>(errors()), /*adds=*/true);
  }
  return true;
}

void SparseStaging::put(const std::byte* numbers, DType dtype, size_t count, std::byte* to,
                        bool adds) {
  WorkStream& stream = *device_.to_device;
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
    device_.traffic->coded.to_device += whole;
    return;
  }
  // `compact` may write behind what it gives.
  std::byte* const pinned =
      written_.emplace_back(stream.pinned(bytes + kMarkTile * sizeof(float))).get();
  std::memcpy(pinned, mask.data(), mask_bytes(count));
  std::memcpy(pinned + ranks_at, before.data(), before.size() * sizeof(uint32_t));
  for (size_t tile = 0; tile < before.size(); ++tile) {
    dispatched_sparse_kernels().compact(
        tiles[tile], mask.data() + tile * (kMarkTile / kWord), tiles.length(tile),
        reinterpret_cast<float*>(pinned + numbers_at) + before[tile]);
  }
  const DeviceElements elements(*device_.kernels, dtype);
  const bool is_wide = elements.is_wide();
  stream.with([&] {
    const size_t floats_at = DevicePieces::rounded(bytes);
    const std::shared_ptr<std::byte> there =
        stream.scratch(floats_at + (is_wide ? 0 : count * sizeof(float)));
    stream.copy(there.get(), pinned, bytes, WorkStream::Way::kToDevice);
    const Marks marks = {count, reinterpret_cast<uint64_t*>(there.get()),
                         reinterpret_cast<uint32_t*>(there.get() + ranks_at)};
    auto* const out = reinterpret_cast<float*>(is_wide ? to : there.get() + floats_at);
    device_.kernels->put(marks, reinterpret_cast<const float*>(there.get() + numbers_at), out, adds,
                         stream.handle());
    if (!is_wide) elements.write(out, count, to, stream.handle());
  });
  device_.traffic->coded.to_device += bytes;
}

}  // namespace q7x2
