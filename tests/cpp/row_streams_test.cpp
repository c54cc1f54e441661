// Which rank aggregates which row, the messages of rows, and the sum of one stream.
#include "plan/ir/row_streams.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "executor/sparse/row_aggregator.h"
#include "executor/sparse/row_message.h"
#include "executor/sparse/row_source.h"
#include "kernels/cpu/zero_rows.h"

namespace q7x2 {
namespace {

TEST(RowStreams, EveryRowHasOnePlaceAndEveryRankItsShare) {
  for (const int ranks : {1, 3, 8}) {
    const RowStreams streams(10'000, 1024, ranks, ranks);
    std::set<std::pair<size_t, uint64_t>> places;
    std::map<int, int> rows_of;
    for (uint64_t row = 0; row < streams.rows(); ++row) {
      const int owner = streams.owner(row);
      const size_t stream = streams.stream(row);
      ASSERT_LT(stream, streams.streams());
      EXPECT_EQ(streams.row(owner, stream, streams.position(row)), row);
      places.emplace(static_cast<size_t>(owner) * streams.streams() + stream,
                     streams.position(row));
      ++rows_of[owner];
    }
    EXPECT_EQ(places.size(), streams.rows());
    for (const auto& [owner, rows] : rows_of) EXPECT_NEAR(rows, 10'000 / ranks, 16);
  }
}

TEST(RowStreams, AStreamEndsBehindItsLastRow) {
  for (const int owners : {1, 2, 3}) {
    for (uint64_t rows = 0; rows < 400; ++rows) {
      const RowStreams streams(rows, 8, owners, owners);
      std::map<std::pair<int, size_t>, uint64_t> ends;
      for (uint64_t row = 0; row < rows; ++row) {
        ends[{streams.owner(row), streams.stream(row)}] = streams.position(row) + 1;
      }
      for (int owner = 0; owner < owners; ++owner) {
        for (size_t stream = 0; stream < streams.streams(); ++stream) {
          const uint64_t expected = ends[{owner, stream}];
          ASSERT_EQ(end_of_stream(streams, owner, stream), expected)
              << rows << " rows, owner " << owner;
        }
      }
    }
  }
}

TEST(RowStreams, MessagesAreShorterForMoreRanks) {
  EXPECT_EQ(RowStreams(1'000'000, 1024, 2, 2).message_rows(), 64U);
  EXPECT_EQ(RowStreams(1'000'000, 1024, 8, 8).message_rows(), 16U);
  EXPECT_EQ(RowStreams(1'000'000, 1024, 1024, 1024).message_rows(), 4U);
  EXPECT_EQ(RowStreams(1'000'000, 1 << 20, 8, 8).message_rows(), 1U);
  EXPECT_EQ(RowStreams(0, 0, 2, 2).streams(), 1U);
}

using Bytes = std::vector<std::byte>;

/// A message with rows of one int32 each, which is their position.
Bytes message_of(const std::vector<uint64_t>& positions, uint64_t next) {
  Bytes bytes(RowWriter::capacity(positions.size(), sizeof(int32_t)));
  RowWriter writer;
  writer.begin(bytes.data(), positions.size(), sizeof(int32_t));
  for (const uint64_t position : positions) {
    const auto value = static_cast<int32_t>(position);
    std::memcpy(writer.add(position), &value, sizeof(value));
  }
  RowHeader how;
  how.next = next;
  bytes.resize(writer.finish(how));
  return bytes;
}

TEST(RowMessage, TheIndexIsTheShorterOfListAndBitmap) {
  const std::vector<uint64_t> dense = {7, 8, 9, 10, 12};
  const std::vector<uint64_t> sparse = {7, 70'000};
  EXPECT_EQ(message_of(dense, 13).size(), sizeof(RowHeader) + 5 * 4 + 8);
  EXPECT_EQ(message_of(sparse, 70'001).size(), sizeof(RowHeader) + 2 * 4 + 2 * 4);
  for (const auto& positions : {dense, sparse, {}}) {
    const Bytes bytes = message_of(positions, 70'001);
    const auto read = RowMessage::read(bytes.data(), bytes.size(), 5, 4, 7);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->positions, positions);
  }
}

TEST(RowMessage, WhatDoesNotFitIsRefused) {
  const Bytes good = message_of({7, 8, 9}, 10);
  const auto is_read = [&](const Bytes& bytes, size_t most = 5, uint64_t from = 7) {
    return RowMessage::read(bytes.data(), bytes.size(), most, 4, from).has_value();
  };
  EXPECT_TRUE(is_read(good));
  EXPECT_FALSE(is_read(good, 2));
  EXPECT_FALSE(is_read(good, 5, 8));
  EXPECT_FALSE(is_read({good.begin(), good.end() - 1}));
  EXPECT_FALSE(is_read({good.begin(), good.begin() + 20}));
  EXPECT_FALSE(is_read(message_of({7, 8, 9}, 9)));
  EXPECT_FALSE(is_read(message_of({7, 70'000, 60'000}, 80'000)));
}

std::vector<int32_t> sums_of(const RowAggregator& sum, std::vector<uint64_t>& positions) {
  std::vector<int32_t> values;
  positions.clear();
  for (const auto bytes : sum.messages()) {
    const auto read = RowMessage::read(bytes.data(), bytes.size(), 3, 4, 0);
    if (!read) throw std::runtime_error("a result is no message");
    for (size_t i = 0; i < read->positions.size(); ++i) {
      positions.push_back(read->positions[i]);
      values.emplace_back();
      std::memcpy(&values.back(), read->rows + i * 4, 4);
    }
  }
  return values;
}

TEST(RowAggregator, AddsUpToTheFrontierAndAsksThoseWhoAreThere) {
  RowAggregator sum({.dtype = DType::kInt32, .bytes = 4, .in_message = 3}, 2);
  EXPECT_TRUE(sum.asks(0) && sum.asks(1));
  const Bytes first = message_of({0, 3, 4}, 9);
  const Bytes second = message_of({1, 3}, 6);
  ASSERT_TRUE(sum.take(1, second) && sum.take(0, first));
  sum.fold();
  EXPECT_EQ(sum.frontier(), 6U);
  std::vector<uint64_t> positions;
  EXPECT_EQ(sums_of(sum, positions), (std::vector<int32_t>{0, 1, 6, 4}));
  EXPECT_EQ(positions, (std::vector<uint64_t>{0, 1, 3, 4}));
  EXPECT_EQ(sum.messages().size(), 2U);  // of three rows at most
  EXPECT_FALSE(sum.asks(0));
  EXPECT_TRUE(sum.asks(1));

  const Bytes last = message_of({6}, RowStreams::kEnd);
  ASSERT_TRUE(sum.take(1, last));
  sum.fold();
  EXPECT_EQ(sum.frontier(), 9U);
  EXPECT_TRUE(sum.asks(0));
  EXPECT_FALSE(sum.asks(1));
  EXPECT_FALSE(sum.take(0, message_of({8}, RowStreams::kEnd)));  // was not asked for
}

TEST(RowAggregator, RefusesRowsThatTheStreamDoesNotHave) {
  const auto is_taken = [](const Bytes& message) {
    RowAggregator sum({.dtype = DType::kInt32, .bytes = 4, .in_message = 3, .end = 9}, 1);
    return sum.take(0, message);
  };
  EXPECT_TRUE(is_taken(message_of({0, 8}, RowStreams::kEnd)));
  EXPECT_TRUE(is_taken(message_of({0}, 8)));
  EXPECT_FALSE(is_taken(message_of({0}, 9)));
  EXPECT_FALSE(is_taken(message_of({0, 9}, RowStreams::kEnd)));
  EXPECT_FALSE(is_taken(message_of({uint64_t{1} << 63}, RowStreams::kEnd)));
}

TEST(RowAggregator, AsksForAllRowsWhileTheyAreDenseAndLooksAgain) {
  RowAggregator sum({.dtype = DType::kInt32, .bytes = 4, .in_message = 2, .is_dense = true}, 1);
  std::vector<bool> takes_all;
  for (uint64_t at = 0; at < 20; at += 2) {
    const Bytes rows = message_of({at, at + 1}, at + 2);
    ASSERT_TRUE(sum.take(0, rows));
    sum.fold();
    RowHeader header;
    std::memcpy(&header, sum.messages()[0].data(), sizeof(header));
    takes_all.push_back(header.takes_all != 0);
  }
  EXPECT_EQ(takes_all,
            (std::vector<bool>{true, true, true, false, true, true, true, false, true, true}));
}

TEST(BlockRows, OnlyBlocksOfZeroBitsAreLeftOut) {
  std::vector<float> tensor(BlockRows::kBytes);  // four blocks
  tensor[300] = -0.0F;
  const BlockRows rows(std::as_writable_bytes(std::span(tensor)), 1);
  EXPECT_EQ(rows.next(0, 0, 0), 1U);
  EXPECT_EQ(rows.next(0, 0, 2), RowStreams::kEnd);
  EXPECT_EQ(rows.next_of_all(0, 0, 3), 3U);
  EXPECT_EQ(rows.next_of_all(0, 0, 4), RowStreams::kEnd);
}

TEST(ZeroRows, FindsASingleBitAnywhere) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{1000}}) {
    Bytes data(bytes);
    EXPECT_TRUE(is_zero_bits(data.data(), bytes));
    for (size_t at = 0; at < bytes; at += 13) {
      data[at] = std::byte{0x80};
      EXPECT_FALSE(is_zero_bits(data.data(), bytes)) << at << " of " << bytes;
      data[at] = std::byte{0};
    }
  }
}

}  // namespace
}  // namespace q7x2
