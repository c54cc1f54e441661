// The messages of a sparse all-reduce: rows of one stream, with their positions.
//
//   header | rows, one after the other | index
//
// The index has one of two forms, whichever is shorter: one 32-bit offset per row, or one bit per
// position from the first row to the last. SparCML switches between these representations; here,
// each message has the one that suits its density. If every position has a row, the index is one
// bit per row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace q7x2 {

struct RowHeader {
  /// In a message of a rank: the position of its next row. In a message of an aggregator: the
  /// position of the next row that any rank has, which it asks for. RowStreams::kEnd: there is
  /// none.
  uint64_t next = 0;
  uint64_t first = 0;  ///< the position of the first row
  uint32_t count = 0;  ///< number of rows
  uint32_t span = 0;   ///< number of positions from the first row to the last, both included
  /// In the last message of a round: rows of all ranks that were added up in the round.
  uint32_t given = 0;
  uint8_t is_bitmap = 0;
  uint8_t has_more = 0;   ///< the result of this round continues in the next message
  uint8_t takes_all = 0;  ///< the ranks should send their next rows even if these are zero
  uint8_t reserved = 0;
};
static_assert(sizeof(RowHeader) == 32);

/// Writes one message.
class RowWriter {
 public:
  /// The largest length of a message of `rows` rows, in bytes.
  static size_t capacity(size_t rows, size_t row_bytes);

  /// Begins a message in `memory`, which has room for `most` rows.
  void begin(std::byte* memory, size_t most, size_t row_bytes);
  /// Whether the message has room for a row at `position`, which must be after all rows before.
  bool fits(uint64_t position) const;
  /// Adds a row at `position`. Returns the address where the caller must write it.
  std::byte* add(uint64_t position);
  size_t count() const { return positions_.size(); }
  /// Completes the message and returns its length. `how`: its `next`, `has_more`, `takes_all` and
  /// `given`.
  size_t finish(const RowHeader& how);

 private:
  std::byte* memory_ = nullptr;
  size_t most_ = 0;
  size_t row_bytes_ = 0;
  std::vector<uint64_t> positions_;
};

/// A message that has arrived and was checked.
struct RowMessage {
  RowHeader header;
  std::vector<uint64_t> positions;  ///< ascending
  const std::byte* rows = nullptr;

  /// Returns nothing unless the bytes are a message of at most `most` rows, all of them at `from`
  /// or after, and before `header.next`.
  static std::optional<RowMessage> read(const std::byte* data, size_t length, size_t most,
                                        size_t row_bytes, uint64_t from);
};

}  // namespace q7x2
