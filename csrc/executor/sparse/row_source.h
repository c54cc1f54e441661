// The rows that a rank contributes to a sparse all-reduce, and the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/sparse/sparse_call.h"
#include "plan/ir/row_streams.h"

namespace q7x2 {

/// The rows of one rank. Threads may use different streams at once. In one stream, `next` and
/// `read` may run at the same time as `write`, which then writes positions before those that they
/// use.
class RowSource {
 public:
  explicit RowSource(const RowLayout& layout) : layout_(layout) {}
  virtual ~RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  const RowLayout& layout() const { return layout_; }
  const RowStreams& streams() const { return layout_.streams; }
  size_t row_bytes() const { return layout_.row_bytes; }

  /// The first position at `from` or after at which this rank has a row; RowStreams::kEnd if there
  /// is none.
  virtual uint64_t next(int owner, size_t stream, uint64_t from) const = 0;
  /// The same, including rows of zeros. Sources that do not store such rows return the same as
  /// `next`.
  virtual uint64_t next_of_all(int owner, size_t stream, uint64_t from) const {
    return next(owner, stream, from);
  }
  /// Copies the row at a position that `next` or `next_of_all` has returned.
  virtual void read(int owner, size_t stream, uint64_t position, std::byte* to) const = 0;
  /// Writes a row of the result. The rows of a stream come in ascending order.
  virtual void write(int owner, size_t stream, uint64_t position, const std::byte* from) = 0;

 private:
  const RowLayout layout_;
};

/// A dense tensor, divided into blocks. The last block may be shorter. Blocks in which all bits are
/// zero are left out. The result replaces the tensor.
class BlockRows final : public RowSource {
 public:
  /// Bytes of a block.
  static constexpr size_t kBytes = 1024;

  static RowLayout layout_of(uint64_t bytes, int ranks, int owners);

  /// The ranks own the blocks.
  BlockRows(std::span<std::byte> tensor, int ranks);
  /// Servers own the blocks. The data that the result replaces is kept for `undo`.
  BlockRows(std::span<std::byte> tensor, int ranks, int servers);

  uint64_t next(int owner, size_t stream, uint64_t from) const override;
  uint64_t next_of_all(int owner, size_t stream, uint64_t from) const override;
  void read(int owner, size_t stream, uint64_t position, std::byte* to) const override;
  void write(int owner, size_t stream, uint64_t position, const std::byte* from) override;

  /// Restores all data that was replaced. Only if servers own the blocks, and after the call.
  void undo();

 private:
  struct Replaced {
    std::vector<uint64_t> rows;
    std::vector<std::byte> bytes;
  };

  std::span<std::byte> block(uint64_t row) const;

  const std::span<std::byte> tensor_;
  std::vector<Replaced> replaced_;  // by owner and stream; empty: replaced data is not kept
};

/// The rows of a coalesced COO tensor, listed by their numbers. The result is stored separately.
class ListedRows final : public RowSource {
 public:
  /// `numbers`: ascending, each less than `rows`. `values`: one row per number. Both must outlive
  /// it.
  ListedRows(std::span<const int64_t> numbers, const std::byte* values, size_t row_bytes,
             uint64_t rows, int ranks);

  uint64_t next(int owner, size_t stream, uint64_t from) const override;
  void read(int owner, size_t stream, uint64_t position, std::byte* to) const override;
  void write(int owner, size_t stream, uint64_t position, const std::byte* from) override;

  // After the call is complete:

  size_t result_rows() const;
  /// Writes the result: the row numbers, ascending, and the rows.
  void collect(int64_t* numbers, std::byte* values) const;

 private:
  struct Entry {
    uint64_t position;
    size_t index;  // index among the given rows
  };
  struct StreamRows {
    std::vector<Entry> given;
    std::vector<uint64_t> positions;  // positions in the result
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
