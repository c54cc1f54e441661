#include "executor/sparse/row_source.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/zero_rows.h"

namespace q7x2 {

// ----------------------------------------------------------------------------------- dense blocks

RowLayout BlockRows::layout_of(uint64_t bytes, int ranks, int owners) {
  return {.streams = RowStreams((bytes + kBytes - 1) / kBytes, kBytes, ranks, owners),
          .row_bytes = kBytes,
          .is_dense = true};
}

BlockRows::BlockRows(std::span<std::byte> tensor, int ranks)
    : RowSource(layout_of(tensor.size(), ranks, ranks)), tensor_(tensor) {}

BlockRows::BlockRows(std::span<std::byte> tensor, int ranks, int servers)
    : RowSource(layout_of(tensor.size(), ranks, servers)),
      tensor_(tensor),
      replaced_(static_cast<size_t>(servers) * streams().streams()) {}

std::span<std::byte> BlockRows::block(uint64_t row) const {
  const size_t begin = static_cast<size_t>(row) * kBytes;
  return tensor_.subspan(begin, std::min(kBytes, tensor_.size() - begin));
}

uint64_t BlockRows::next(int owner, size_t stream, uint64_t from) const {
  for (uint64_t position = from;; ++position) {
    const uint64_t row = streams().row(owner, stream, position);
    if (row >= streams().rows()) return RowStreams::kEnd;
    const std::span<std::byte> bytes = block(row);
    if (!is_zero_bits(bytes.data(), bytes.size())) return position;
  }
}

uint64_t BlockRows::next_of_all(int owner, size_t stream, uint64_t from) const {
  return streams().row(owner, stream, from) < streams().rows() ? from : RowStreams::kEnd;
}

void BlockRows::read(int owner, size_t stream, uint64_t position, std::byte* to) const {
  const std::span<std::byte> bytes = block(streams().row(owner, stream, position));
  std::memcpy(to, bytes.data(), bytes.size());
  std::memset(to + bytes.size(), 0, kBytes - bytes.size());
}

void BlockRows::write(int owner, size_t stream, uint64_t position, const std::byte* from) {
  const uint64_t row = streams().row(owner, stream, position);
  const std::span<std::byte> bytes = block(row);
  if (!replaced_.empty()) {
    Replaced& its = replaced_[static_cast<size_t>(owner) * streams().streams() + stream];
    its.rows.push_back(row);
    its.bytes.insert(its.bytes.end(), bytes.begin(), bytes.end());
  }
  std::memcpy(bytes.data(), from, bytes.size());
}

void BlockRows::undo() {
  for (const Replaced& its : replaced_) {
    const std::byte* from = its.bytes.data();
    for (const uint64_t row : its.rows) {
      const std::span<std::byte> to = block(row);
      std::memcpy(to.data(), from, to.size());
      from += to.size();
    }
  }
}

// ------------------------------------------------------------------------------------ listed rows

ListedRows::ListedRows(std::span<const int64_t> numbers, const std::byte* values, size_t row_bytes,
                       uint64_t rows, int ranks)
    : RowSource({.streams = RowStreams(rows, row_bytes, ranks, ranks),
                 .row_bytes = row_bytes,
                 .is_dense = false}),
      values_(values),
      by_stream_(static_cast<size_t>(ranks) * streams().streams()) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto row = static_cast<uint64_t>(numbers[i]);
    by_stream_[index(streams().owner(row), streams().stream(row))].given.push_back(
        {streams().position(row), i});
  }
}

std::vector<ListedRows::Entry>::const_iterator ListedRows::find(const StreamRows& its,
                                                                uint64_t from) {
  return std::ranges::lower_bound(its.given, from, {}, &Entry::position);
}

uint64_t ListedRows::next(int owner, size_t stream, uint64_t from) const {
  const StreamRows& its = by_stream_[index(owner, stream)];
  const auto entry = find(its, from);
  return entry == its.given.end() ? RowStreams::kEnd : entry->position;
}

void ListedRows::read(int owner, size_t stream, uint64_t position, std::byte* to) const {
  const Entry& entry = *find(by_stream_[index(owner, stream)], position);
  std::memcpy(to, values_ + entry.index * row_bytes(), row_bytes());
}

void ListedRows::write(int owner, size_t stream, uint64_t position, const std::byte* from) {
  StreamRows& its = by_stream_[index(owner, stream)];
  its.positions.push_back(position);
  its.rows.insert(its.rows.end(), from, from + row_bytes());
}

size_t ListedRows::result_rows() const {
  size_t count = 0;
  for (const StreamRows& its : by_stream_) count += its.positions.size();
  return count;
}

// The rows of a stream are in order, chunk by chunk, so it suffices to sort the chunks.
void ListedRows::collect(int64_t* numbers, std::byte* values) const {
  struct Run {
    uint64_t first;  // row
    size_t stream;   // index among the streams of all owners
    size_t begin;
    size_t end;
  };
  std::vector<Run> runs;
  const size_t in_stream = streams().streams();
  const auto row_at = [&](size_t number, size_t i) {
    return streams().row(static_cast<int>(number / in_stream), number % in_stream,
                         by_stream_[number].positions[i]);
  };
  for (size_t number = 0; number < by_stream_.size(); ++number) {
    const std::vector<uint64_t>& positions = by_stream_[number].positions;
    for (size_t begin = 0; begin < positions.size();) {
      size_t end = begin + 1;
      while (end < positions.size() &&
             positions[end] / RowStreams::kChunk == positions[begin] / RowStreams::kChunk) {
        ++end;
      }
      runs.push_back({row_at(number, begin), number, begin, end});
      begin = end;
    }
  }
  std::ranges::sort(runs, {}, &Run::first);
  for (const Run& run : runs) {
    for (size_t i = run.begin; i < run.end; ++i) {
      *numbers++ = static_cast<int64_t>(row_at(run.stream, i));
    }
    const size_t bytes = (run.end - run.begin) * row_bytes();
    if (bytes > 0) {
      std::memcpy(values, by_stream_[run.stream].rows.data() + run.begin * row_bytes(), bytes);
    }
    values += bytes;
  }
}

}  // namespace q7x2
