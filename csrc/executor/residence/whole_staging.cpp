#include "executor/residence/whole_staging.h"

#include <algorithm>
#include <utility>

#include "base/types.h"

namespace q7x2 {
namespace {

constexpr size_t kLine = 64;

size_t rounded(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

WholeStaging::WholeStaging(std::shared_ptr<InputLatch> inputs, ResidentDevice device)
    : Residence(std::move(inputs), std::move(device)) {
  enters_ = leaves_ = true;
}

void WholeStaging::add_pieces(const CollectiveCall& call) {
  for (const Region& region : call.input) add(region.data, region.bytes, true, false);
  for (const Region& region : call.output) add(region.data, region.bytes, false, true);
  for (size_t i = 0; i < call.coding.errors.size(); ++i) {
    const size_t elements = call.input[i].bytes / element_size(call.dtype);
    add(reinterpret_cast<std::byte*>(call.coding.errors[i]), elements * sizeof(float), true, true);
  }
  size_t total = 0;
  for (const Piece& piece : pieces_) total += rounded(piece.bytes);
  pinned_ = device_->to_host->pinned(total);
  std::byte* next = pinned_.get();
  for (Piece& piece : pieces_) {
    piece.host = next;
    next += rounded(piece.bytes);
  }
}

// An in-place result and its input are one piece. Other regions do not overlap.
void WholeStaging::add(std::byte* data, size_t bytes, bool is_read, bool is_written) {
  if (bytes == 0) return;
  const auto known =
      std::ranges::find_if(pieces_, [&](const Piece& piece) { return piece.device == data; });
  if (known == pieces_.end()) {
    pieces_.push_back({data, nullptr, bytes, is_read, is_written});
    return;
  }
  known->is_read = known->is_read || is_read;
  known->is_written = known->is_written || is_written;
}

std::byte* WholeStaging::host_of(const std::byte* data) const {
  const auto piece =
      std::ranges::find_if(pieces_, [&](const Piece& each) { return each.device == data; });
  return piece == pieces_.end() ? nullptr : piece->host;
}

Residence::Next WholeStaging::enter(const Run& run) {
  CollectiveCall& call = run.call;
  add_pieces(call);
  ++device_->traffic->staged.calls;
  WorkStream& stream = *device_->to_host;
  stream.with([&] {
    for (const Piece& piece : pieces_) {
      if (!piece.is_read) continue;
      stream.copy(piece.host, piece.device, piece.bytes, WorkStream::Way::kToHost);
      device_->traffic->staged.to_host += piece.bytes;
    }
  });
  for (Region& region : call.input) region.data = host_of(region.data);
  for (Region& region : call.output) region.data = host_of(region.data);
  for (float*& errors : call.coding.errors) {
    errors = reinterpret_cast<float*>(host_of(reinterpret_cast<std::byte*>(errors)));
  }
  return Next::kStream;
}

Residence::Next WholeStaging::leave(const Run&) {
  WorkStream& stream = *device_->to_device;
  stream.with([&] {
    for (const Piece& piece : pieces_) {
      if (!piece.is_written) continue;
      stream.copy(piece.device, piece.host, piece.bytes, WorkStream::Way::kToDevice);
      device_->traffic->staged.to_device += piece.bytes;
    }
  });
  return Next::kStream;
}

}  // namespace q7x2
