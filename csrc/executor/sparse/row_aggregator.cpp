#include "executor/sparse/row_aggregator.h"

#include <algorithm>

#include "kernels/cpu/reduce.h"

namespace q7x2 {
namespace {

// If the ranks send at least this share of all their rows, testing rows for zeros is not
// worthwhile.
constexpr double kDense = 0.9;
// Then the ranks send this many messages without testing, and test again in the next one.
constexpr int kWithoutLooking = 3;

}  // namespace

uint64_t end_of_stream(const RowStreams& streams, int owner, size_t stream) {
  const auto owners = static_cast<uint64_t>(streams.owners());
  const uint64_t in_turn = owners * streams.streams();
  const uint64_t first = stream * owners + static_cast<uint64_t>(owner);  // its first chunk
  const uint64_t whole = streams.rows() / RowStreams::kChunk;
  const uint64_t chunks = whole > first ? (whole - first - 1) / in_turn + 1 : 0;
  const bool has_rest = whole >= first && (whole - first) % in_turn == 0;
  return chunks * RowStreams::kChunk + (has_rest ? streams.rows() % RowStreams::kChunk : 0);
}

RowAggregator::RowAggregator(Rows rows, int world_size)
    : rows_(rows),
      next_(static_cast<size_t>(world_size), 0),
      contributions_(static_cast<size_t>(world_size)),
      zeros_(rows.is_dense ? rows.bytes : 0) {}

bool RowAggregator::take(int rank, std::span<const std::byte> bytes) {
  const auto r = static_cast<size_t>(rank);
  auto message =
      RowMessage::read(bytes.data(), bytes.size(), rows_.in_message, rows_.bytes, frontier_);
  if (!message || message->header.has_more != 0 || message->header.takes_all != 0) return false;
  // A rank is asked because it has a row at the frontier. It sends that row, so its next one is
  // later.
  const uint64_t next = message->header.next;
  if (next == frontier_ || (next != RowStreams::kEnd && next >= rows_.end)) return false;
  if (!message->positions.empty() && message->positions.back() >= rows_.end) return false;
  next_[r] = next;
  contributions_[r] = {std::move(message->positions), message->rows, 0};
  if (!contributions_[r].positions.empty()) {
    heads_.emplace(contributions_[r].positions.front(), r);
  }
  return true;
}

void RowAggregator::fold() {
  const uint64_t from = frontier_;
  frontier_ = *std::ranges::min_element(next_);
  writers_used_ = 0;
  added_ = 0;
  begin_message();
  while (!heads_.empty() && heads_.top().first < frontier_) add_row(heads_.top().first);

  takes_all_ = decides_to_take_all(from);
  messages_.clear();
  for (size_t i = 0; i < writers_used_; ++i) {
    RowHeader how;
    how.next = frontier_;
    how.has_more = i + 1 < writers_used_ ? 1 : 0;
    how.takes_all = takes_all_ ? 1 : 0;
    if (how.has_more == 0) how.given = static_cast<uint32_t>(added_);
    messages_.emplace_back(memory_[i].get(), writers_[i].finish(how));
  }
}

void RowAggregator::add_row(uint64_t position) {
  sources_.clear();
  while (!heads_.empty() && heads_.top().first == position) {
    const size_t rank = heads_.top().second;
    heads_.pop();
    Contribution& its = contributions_[rank];
    sources_.push_back(its.rows + its.begin * rows_.bytes);
    if (++its.begin < its.positions.size()) heads_.emplace(its.positions[its.begin], rank);
  }
  added_ += sources_.size();
  // A row that is left out counts as zeros: adding them turns a negative zero of the other ranks
  // into a positive one.
  if (rows_.is_dense && sources_.size() < next_.size()) sources_.push_back(zeros_.data());
  if (!writers_[writers_used_ - 1].fits(position)) begin_message();
  std::byte* const to = writers_[writers_used_ - 1].add(position);
  const size_t count = rows_.bytes / element_size(rows_.dtype);
  if (count > 0) reduce(to, sources_, count, rows_.dtype, ReduceKind::kSum, rows_.divisor);
}

void RowAggregator::begin_message() {
  const size_t at = writers_used_++;
  if (at == memory_.size()) {
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(
        RowWriter::capacity(rows_.in_message, rows_.bytes)));
    writers_.emplace_back();
  }
  writers_[at].begin(memory_[at].get(), rows_.in_message, rows_.bytes);
}

bool RowAggregator::decides_to_take_all(uint64_t from) {
  if (!rows_.is_dense || frontier_ == RowStreams::kEnd) return false;
  if (takes_all_) return ++unmeasured_ < kWithoutLooking;
  unmeasured_ = 0;
  const auto all = static_cast<double>(frontier_ - from) * static_cast<double>(next_.size());
  return static_cast<double>(added_) >= kDense * all;
}

}  // namespace q7x2
