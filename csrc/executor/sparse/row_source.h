// Where the rows of a sparse all-reduce come from, and where its result goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/sparse/sparse_call.h"
#include "plan/ir/row_streams.h"

namespace q7x2 {

/// One rank's rows. Threads may use different streams at once. In one stream `next` and `read` may
/// run beside `write`, which then is for positions before those.
class RowSource {
 public:
  explicit RowSource(const RowLayout& layout) : layout_(layout) {}
  virtual ~RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  const RowLayout& layout() const { return layout_; }
  const RowStreams& streams() const { return layout_.streams; }
  size_t row_bytes() const { return layout_.row_bytes; }

  /// The first position at `from` or beyond where this rank has a row; RowStreams::kEnd: none.
  virtual uint64_t next(int owner, size_t stream, uint64_t from) const = 0;
  /// The same, with rows of zeros. A source that does not keep such rows has none.
  virtual uint64_t next_of_all(int owner, size_t stream, uint64_t from) const {
    return next(owner, stream, from);
  }
  /// Copies the row at a position that `next` or `next_of_all` gave.
  virtual void read(int owner, size_t stream, uint64_t position, std::byte* to) const = 0;
  /// A row of the result. The rows of a stream come in ascending order.
  virtual void write(int owner, size_t stream, uint64_t position, const std::byte* from) = 0;

 private:
  const RowLayout layout_;
};

/// A dense tensor in blocks; the last one may be shorter. Blocks whose bits are all zero are left
/// out. The result replaces the tensor.
class BlockRows final : public RowSource {
 public:
  /// Of a block.
  static constexpr size_t kBytes = 1024;

  static RowLayout layout_of(uint64_t bytes, int ranks, int owners);

  /// Ranks own the blocks.
  BlockRows(std::span<std::byte> tensor, int ranks);
  /// Servers own them. What results replace is kept, for `undo`.
  BlockRows(std::span<std::byte> tensor, int ranks, int servers);

  uint64_t next(int owner, size_t stream, uint64_t from) const override;
  uint64_t next_of_all(int owner, size_t stream, uint64_t from) const override;
  void read(int owner, size_t stream, uint64_t position, std::byte* to) const override;
  void write(int owner, size_t stream, uint64_t position, const std::byte* from) override;

  /// Puts back all that was replaced. Only of blocks that servers own, when the call is over.
  void undo();

 private:
  struct Replaced {
    std::vector<uint64_t> rows;
    std::vector<std::byte> bytes;
  };

  std::span<std::byte> block(uint64_t row) const;

  const std::span<std::byte> tensor_;
  std::vector<Replaced> replaced_;  // by owner and stream; empty: nothing is kept
};

/// Rows that are listed by their numbers: a coalesced COO tensor. The result is collected beside.
class ListedRows final : public RowSource {
 public:
  /// `numbers`: ascending, each less than `rows`. `values`: a row for each. Both must stay.
  ListedRows(std::span<const int64_t> numbers, const std::byte* values, size_t row_bytes,
             uint64_t rows, int ranks);

  uint64_t next(int owner, size_t stream, uint64_t from) const override;
  void read(int owner, size_t stream, uint64_t position, std::byte* to) const override;
  void write(int owner, size_t stream, uint64_t position, const std::byte* from) override;

  // When the call is complete.

  size_t result_rows() const;
  /// Writes the result: its numbers, ascending, and its rows.
  void collect(int64_t* numbers, std::byte* values) const;

 private:
  struct Entry {
    uint64_t position;
    size_t index;  // among the given rows
  };
  struct StreamRows {
    std::vector<Entry> given;
    std::vector<uint64_t> positions;  // of the result
    std::vector<std::byte> rows;
  };
  size_t index(int owner, size_t stream) const {
    return static_cast<size_t>(owner) * streams().streams() + stream;
  }
  static std::vector<Entry>::const_iterator find(const StreamRows& its, uint64_t from);

  const std::byte* const values_;
  std::vector<StreamRows> by_stream_;
};

}  // namespace q7x2
