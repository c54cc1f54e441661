#include "transport/stream/frame_writer.h"

#include <algorithm>
#include <array>
#include <utility>

namespace q7x2 {
namespace {

constexpr size_t kFramesAtOnce = 16;

iovec part(const void* data, size_t size, size_t done) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  return {const_cast<std::byte*>(bytes) + done, size - done};
}

}  // namespace

void FrameWriter::add(const Frame& frame, std::string body) {
  Waiting& next = waiting_.emplace_back();
  next.header = frame.encode();
  next.own = std::move(body);
  next.size = next.own.size();
  bytes_ += Frame::kHeaderBytes + next.size;
}

void FrameWriter::add(const Frame& frame, const std::byte* body) {
  Waiting& next = waiting_.emplace_back();
  next.header = frame.encode();
  next.body = body;
  next.size = frame.bytes;
  next.message = frame.message;
  bytes_ += Frame::kHeaderBytes + next.size;
}

void FrameWriter::release(uint64_t message) {
  std::erase_if(waiting_, [&](const Waiting& each) {
    const bool goes = each.body != nullptr && each.message == message && each.done == 0;
    if (goes) bytes_ -= Frame::kHeaderBytes + each.size;
    return goes;
  });
  for (Waiting& each : waiting_) {
    if (each.body == nullptr || each.message != message) continue;
    each.own.assign(reinterpret_cast<const char*>(each.body), each.size);
    each.body = nullptr;
  }
}

bool FrameWriter::flush(ByteStream& stream) {
  while (!waiting_.empty()) {
    std::array<iovec, 2 * kFramesAtOnce> parts;
    size_t count = 0;
    size_t size = 0;
    for (size_t i = 0; i < std::min(kFramesAtOnce, waiting_.size()); ++i) {
      const Waiting& each = waiting_[i];
      const size_t header = Frame::kHeaderBytes;
      if (each.done < header) parts[count++] = part(each.header.data(), header, each.done);
      const size_t body_done = each.done - std::min(each.done, header);
      const void* const body = each.body != nullptr ? static_cast<const void*>(each.body)
                                                    : static_cast<const void*>(each.own.data());
      if (each.size > body_done) parts[count++] = part(body, each.size, body_done);
      size += header + each.size - each.done;
    }
    const auto written = stream.write({parts.data(), count});
    if (!written) return false;
    advance(*written);
    if (*written < size) return true;
  }
  return true;
}

void FrameWriter::advance(size_t count) {
  bytes_ -= count;
  while (count > 0) {
    Waiting& first = waiting_.front();
    const size_t step = std::min(count, Frame::kHeaderBytes + first.size - first.done);
    first.done += step;
    count -= step;
    if (first.done == Frame::kHeaderBytes + first.size) waiting_.pop_front();
  }
}

}  // namespace q7x2
