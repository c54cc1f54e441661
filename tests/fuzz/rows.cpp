// The messages of a sparse all-reduce.
#include <algorithm>
#include <cstring>
#include <functional>

#include "executor/sparse/row_message.h"
#include "format.h"
#include "plan/ir/row_streams.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kMost = 40;
constexpr size_t kRowBytes = 12;
constexpr uint64_t kFrom = 5;

std::string message(Random& random) {
  std::string bytes(RowWriter::capacity(kMost, kRowBytes), '\0');
  auto* const memory = reinterpret_cast<std::byte*>(bytes.data());
  RowWriter writer;
  writer.begin(memory, kMost, kRowBytes);
  const uint64_t step = 1 + random() % 100;
  uint64_t position = kFrom + random() % 10;
  for (uint64_t i = random() % kMost; i > 0; --i) {
    std::memset(writer.add(position), static_cast<int>(i), kRowBytes);
    position += 1 + random() % step;
  }
  RowHeader how;
  how.next = random() % 2 == 0 ? position : RowStreams::kEnd;
  how.has_more = random() % 2;
  bytes.resize(writer.finish(how));
  return bytes;
}

bool read_message(std::string_view input, Random&) {
  const auto read = RowMessage::read(reinterpret_cast<const std::byte*>(input.data()), input.size(),
                                     kMost, kRowBytes, kFrom);
  if (!read) return false;
  require(read->positions.size() <= kMost, "more rows than there may be");
  require(
      std::ranges::adjacent_find(read->positions, std::greater_equal<>()) == read->positions.end(),
      "positions do not ascend");
  for (const uint64_t position : read->positions) {
    require(position >= kFrom && position < read->header.next, "a position is out of range");
  }
  return true;
}

}  // namespace

std::vector<Format> row_formats() {
  return {{"rows", 4, message, read_message}};
}

}  // namespace q7x2::fuzz
