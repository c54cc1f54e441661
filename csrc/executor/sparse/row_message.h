// The messages of a sparse all-reduce: rows of one stream, and where they belong.
//
//   header | rows, one after the other | index
//
// The index is whatever is shorter: one offset of 32 bits for each row, or one bit for each
// position from the first row to the last. This is SparCML's switch of representation, made for
// each message by the density of what it carries. Where every position has a row the index is one
// bit per row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace q7x2 {

struct RowHeader {
  /// A rank's message: the position of its next row. An aggregator's: that of the next row that any
  /// rank has, which is asked for. RowStreams::kEnd: there is none.
  uint64_t next = 0;
  uint64_t first = 0;  ///< the position of the first row
  uint32_t count = 0;  ///< of rows
  uint32_t span = 0;   ///< positions from the first row to the last, both included
  uint32_t given = 0;  ///< rows of all ranks that were added up in this round, in its last message
  uint8_t is_bitmap = 0;
  uint8_t has_more = 0;   ///< the result of this round goes on in the next message
  uint8_t takes_all = 0;  ///< the ranks are to send their next rows whether they are zero or not
  uint8_t reserved = 0;
};
static_assert(sizeof(RowHeader) == 32);

/// Makes one message.
class RowWriter {
 public:
  /// What a message of so many rows needs at most.
  static size_t capacity(size_t rows, size_t row_bytes);

  /// Begins a message in `memory`, which has room for `most` rows.
  void begin(std::byte* memory, size_t most, size_t row_bytes);
  /// Whether a row at `position`, which is beyond all before it, still fits in.
  bool fits(uint64_t position) const;
  /// Where the row at `position` is to be written.
  std::byte* add(uint64_t position);
  size_t count() const { return positions_.size(); }
  /// Completes the message and returns its length. `how`: its `next`, `has_more`, `takes_all`.
  size_t finish(const RowHeader& how);

 private:
  std::byte* memory_ = nullptr;
  size_t most_ = 0;
  size_t row_bytes_ = 0;
  std::vector<uint64_t> positions_;
};

/// A message that has come, checked.
struct RowMessage {
  RowHeader header;
  std::vector<uint64_t> positions;  ///< ascending
  const std::byte* rows = nullptr;

  /// Nothing unless the bytes are a message of at most `most` rows, all at `from` or beyond and
  /// before the message's `next` (a rank's message) or before `header.next` (an aggregator's).
  static std::optional<RowMessage> read(const std::byte* data, size_t length, size_t most,
                                        size_t row_bytes, uint64_t from);
};

}  // namespace q7x2
