#include "executor/sparse/row_message.h"

#include <bit>
#include <cstring>
#include <limits>

namespace q7x2 {
namespace {

constexpr size_t kWord = 64;

size_t list_bytes(size_t count) {
  return count * sizeof(uint32_t);
}
size_t bitmap_bytes(uint64_t span) {
  return (span + kWord - 1) / kWord * sizeof(uint64_t);
}

}  // namespace

size_t RowWriter::capacity(size_t rows, size_t row_bytes) {
  return sizeof(RowHeader) + rows * row_bytes + list_bytes(rows);
}

void RowWriter::begin(std::byte* memory, size_t most, size_t row_bytes) {
  memory_ = memory;
  most_ = most;
  row_bytes_ = row_bytes;
  positions_.clear();
}

bool RowWriter::fits(uint64_t position) const {
  return positions_.empty() ||
         (positions_.size() < most_ &&
          position - positions_.front() < std::numeric_limits<uint32_t>::max());
}

std::byte* RowWriter::add(uint64_t position) {
  positions_.push_back(position);
  return memory_ + sizeof(RowHeader) + (positions_.size() - 1) * row_bytes_;
}

size_t RowWriter::finish(const RowHeader& how) {
  RowHeader header = how;
  header.count = static_cast<uint32_t>(positions_.size());
  header.first = positions_.empty() ? 0 : positions_.front();
  header.span =
      positions_.empty() ? 0 : static_cast<uint32_t>(positions_.back() - header.first + 1);
  std::byte* const index = memory_ + sizeof(header) + positions_.size() * row_bytes_;
  header.is_bitmap = bitmap_bytes(header.span) < list_bytes(header.count) ? 1 : 0;
  std::memcpy(memory_, &header, sizeof(header));
  if (header.is_bitmap == 0) {
    for (size_t i = 0; i < positions_.size(); ++i) {
      const auto offset = static_cast<uint32_t>(positions_[i] - header.first);
      std::memcpy(index + i * sizeof(offset), &offset, sizeof(offset));
    }
    return sizeof(header) + positions_.size() * row_bytes_ + list_bytes(header.count);
  }
  const size_t bytes = bitmap_bytes(header.span);
  std::memset(index, 0, bytes);
  for (const uint64_t position : positions_) {
    const uint64_t offset = position - header.first;
    index[offset / 8] |= std::byte{1} << (offset % 8);
  }
  return sizeof(header) + positions_.size() * row_bytes_ + bytes;
}

std::optional<RowMessage> RowMessage::read(const std::byte* data, size_t length, size_t most,
                                           size_t row_bytes, uint64_t from) {
  RowMessage message;
  RowHeader& header = message.header;
  if (length < sizeof(header)) return std::nullopt;
  std::memcpy(&header, data, sizeof(header));
  const bool is_flag = header.is_bitmap <= 1 && header.has_more <= 1 && header.takes_all <= 1;
  if (!is_flag || header.count > most || header.span < header.count || header.next < from ||
      (header.count == 0) != (header.span == 0)) {
    return std::nullopt;
  }
  const bool is_bitmap = header.is_bitmap != 0;
  const size_t index_bytes = is_bitmap ? bitmap_bytes(header.span) : list_bytes(header.count);
  if (length != sizeof(header) + header.count * row_bytes + index_bytes) return std::nullopt;
  if (header.count == 0) return message;
  if (header.first < from || header.first >= header.next ||
      header.next - header.first < header.span) {
    return std::nullopt;
  }
  message.rows = data + sizeof(header);
  message.positions.reserve(header.count);
  const std::byte* const index = message.rows + header.count * row_bytes;
  if (is_bitmap) {
    for (size_t at = 0; at < index_bytes; at += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, index + at, sizeof(word));
      for (; word != 0; word &= word - 1) {
        const auto offset = at * 8 + static_cast<size_t>(std::countr_zero(word));
        if (offset >= header.span || message.positions.size() == header.count) return std::nullopt;
        message.positions.push_back(header.first + offset);
      }
    }
  } else {
    for (size_t i = 0; i < header.count; ++i) {
      uint32_t offset;
      std::memcpy(&offset, index + i * sizeof(offset), sizeof(offset));
      const uint64_t position = header.first + offset;
      if (offset >= header.span || (i > 0 && position <= message.positions.back())) {
        return std::nullopt;
      }
      message.positions.push_back(position);
    }
  }
  const bool is_whole = message.positions.size() == header.count &&
                        message.positions.front() == header.first &&
                        message.positions.back() - header.first + 1 == header.span;
  return is_whole ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace q7x2
