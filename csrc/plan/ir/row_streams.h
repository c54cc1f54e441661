// RowStreams: which rank or server aggregates which rows of a sparse all-reduce, and in which
// stream.
//
// A tensor is a sequence of rows. Chunks of neighbouring rows are assigned to the owners (the ranks
// or the servers) round robin, and each owner assigns its chunks to its streams round robin. So
// rows that are hot because they are neighbours are spread over all owners. A row has a position in
// its stream; positions increase as rows do.
//
//   rows of chunk 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 ...      2 owners, 2 streams each
//   owner         0   1   0   1   0   1   0   1   0
//   stream        0   0   1   1   0   0   1   1   0
//   positions  0..   0.. 0.. 0.. 1c. 1c. 1c. 1c. 2c..
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

class RowStreams {
 public:
  static constexpr uint64_t kChunk = 16;  ///< rows
  static constexpr size_t kMost = 4;      ///< streams per owner
  /// How many bytes all ranks together may have in flight to one owner. More overflows the queue of
  /// its link: 8 hosts with 100 Mbit/s lost 3 % of the packets with 2 MiB, and almost none with
  /// this.
  static constexpr size_t kOnTheWay = size_t{512} << 10;
  static constexpr size_t kLongest = size_t{64} << 10;  ///< bytes of the rows in a message
  static constexpr size_t kShortest = size_t{4} << 10;
  /// The position after the last row.
  static constexpr uint64_t kEnd = ~uint64_t{0};

  RowStreams() = default;
  RowStreams(uint64_t rows, size_t row_bytes, int ranks, int owners)
      : rows_(rows), owners_(static_cast<uint64_t>(owners)) {
    const uint64_t in_turn = kChunk * owners_;
    streams_ = std::clamp<uint64_t>(rows / in_turn, 1, kMost);
    const auto senders = static_cast<size_t>(std::max(ranks, owners));
    const size_t most = std::clamp(kOnTheWay / (senders * streams_), kShortest, kLongest);
    message_rows_ = std::max<size_t>(1, most / std::max<size_t>(1, row_bytes));
  }

  uint64_t rows() const { return rows_; }
  int owners() const { return static_cast<int>(owners_); }
  size_t streams() const { return static_cast<size_t>(streams_); }
  /// Maximum number of rows in a message.
  size_t message_rows() const { return message_rows_; }

  int owner(uint64_t row) const { return static_cast<int>(row / kChunk % owners_); }
  size_t stream(uint64_t row) const {
    return static_cast<size_t>(row / kChunk / owners_ % streams_);
  }
  uint64_t position(uint64_t row) const {
    return row / kChunk / (owners_ * streams_) * kChunk + row % kChunk;
  }
  /// The row at a position of a stream; `rows()` or more if there is none.
  uint64_t row(int owner, size_t stream, uint64_t position) const {
    const uint64_t chunk =
        (position / kChunk * streams_ + stream) * owners_ + static_cast<uint64_t>(owner);
    return chunk * kChunk + position % kChunk;
  }

 private:
  uint64_t rows_ = 0;
  uint64_t owners_ = 1;
  uint64_t streams_ = 1;
  size_t message_rows_ = 1;
};

}  // namespace q7x2
