#include "backend/pinned_buffers.h"

#include <algorithm>
#include <set>

#include "backend/plain_tensors.h"
#include "base/types.h"

namespace q7x2 {

using Copy = DeviceStream::Copy;
using Passage = DeviceStream::Passage;

TaskMemory memory_of(const CollectiveCall& call) {
  TaskMemory memory;
  memory.element = element_size(call.dtype);
  for (const Region& region : call.input) memory.reads.push_back({region, memory.element});
  for (const Region& region : call.output) memory.writes.push_back({region, memory.element});
  for (size_t i = 0; i < call.coding.errors.size(); ++i) {
    const size_t elements = call.input[i].bytes / memory.element;
    auto* const errors = reinterpret_cast<std::byte*>(call.coding.errors[i]);
    const TaskMemory::Piece piece{{errors, elements * sizeof(float)}, sizeof(float)};
    memory.reads.push_back(piece);
    memory.writes.push_back(piece);
  }
  return memory;
}

TaskMemory memory_of_message(const Region& region, bool sends) {
  TaskMemory memory;
  (sends ? memory.reads : memory.writes).push_back({region});
  memory.in_strips = false;
  return memory;
}

void PinnedBuffers::add(const at::Tensor& device, const at::Tensor& host, bool is_read,
                        bool is_written) {
  pinned_.push_back({device.detach(), host, is_read, is_written, is_plain(device)});
}

Passage PinnedBuffers::reads_of(const TaskMemory& memory) const {
  return passage(memory, /*to_host=*/true);
}

Passage PinnedBuffers::writes_of(const TaskMemory& memory) const {
  return passage(memory, /*to_host=*/false);
}

Passage PinnedBuffers::passage(const TaskMemory& memory, bool to_host) const {
  struct Part {
    const PinnedBuffer* pinned_buffer;
    size_t offset;
    const TaskMemory::Piece* piece;
  };
  std::vector<Part> parts;
  std::vector<size_t> lengths;
  for (const TaskMemory::Piece& piece : to_host ? memory.reads : memory.writes) {
    for (const PinnedBuffer& pinned_buffer : pinned_) {
      const auto offset = pinned_buffer.offset_of(piece.region);
      if (!offset || !(to_host ? pinned_buffer.is_read : pinned_buffer.is_written)) continue;
      parts.push_back({&pinned_buffer, *offset, &piece});
      lengths.push_back(piece.region.bytes / piece.element * memory.element);
    }
  }
  Passage passage{Strips(lengths, memory.in_strips ? Strips::kMostCopies : Strips::kOnePerRegion),
                  {}};
  passage.copies.resize(passage.strips.count());
  std::set<const PinnedBuffer*> copied;
  for (const Part& part : parts) {
    const auto at = [&](size_t strip) {
      return std::min(passage.strips.begin(strip) / memory.element * part.piece->element,
                      part.piece->region.bytes);
    };
    if (passage.copies.size() == 1 || !part.pinned_buffer->is_contiguous) {
      std::vector<Copy>& copies = to_host ? passage.copies.front() : passage.copies.back();
      if (copied.insert(part.pinned_buffer).second)
        copies.push_back(part.pinned_buffer->copy(to_host));
      continue;
    }
    for (size_t k = 0; k < passage.copies.size() && at(k) < at(k + 1); ++k) {
      passage.copies[k].push_back(
          part.pinned_buffer->copy(to_host, part.offset + at(k), at(k + 1) - at(k)));
    }
  }
  return passage;
}

std::optional<size_t> PinnedBuffers::PinnedBuffer::offset_of(const Region& region) const {
  const auto* const begin = static_cast<const std::byte*>(host.const_data_ptr());
  if (region.bytes == 0 || region.data < begin || region.data >= begin + host.nbytes()) {
    return std::nullopt;
  }
  return static_cast<size_t>(region.data - begin);
}

Copy PinnedBuffers::PinnedBuffer::copy(bool to_host) const {
  return to_host ? Copy{device, host} : Copy{host, device};
}

Copy PinnedBuffers::PinnedBuffer::copy(bool to_host, size_t begin, size_t bytes) const {
  const auto unit = static_cast<size_t>(host.element_size());
  const auto part = [&](const at::Tensor& whole) {
    return whole.view({-1}).narrow(0, static_cast<int64_t>(begin / unit),
                                   static_cast<int64_t>(bytes / unit));
  };
  return to_host ? Copy{part(device), part(host)} : Copy{part(host), part(device)};
}

}  // namespace q7x2
