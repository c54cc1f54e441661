#include "base/blake2s.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace q7x2 {
namespace {

constexpr std::array<uint32_t, 8> kStart = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                            0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

// Which word of the block each step of a round takes.
constexpr std::array<std::array<uint8_t, 16>, 10> kOrder = {{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}};

uint32_t word_at(const std::byte* bytes) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) {
    word |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  }
  return word;
}

}  // namespace

Blake2s::Blake2s(size_t bytes, std::span<const std::byte> key) : bytes_(bytes), state_(kStart) {
  state_[0] ^= 0x01010000U ^ static_cast<uint32_t>(key.size() << 8) ^ static_cast<uint32_t>(bytes);
  if (!key.empty()) {
    std::array<std::byte, kBlock> padded{};
    std::memcpy(padded.data(), key.data(), key.size());
    add(padded);
  }
}

// A full block waits until more comes: the last one is compressed in another way.
void Blake2s::add(std::span<const std::byte> data) {
  while (!data.empty()) {
    if (filled_ == kBlock) {
      hashed_ += kBlock;
      compress(/*is_last=*/false);
      filled_ = 0;
    }
    const size_t count = std::min(data.size(), kBlock - filled_);
    std::memcpy(block_.data() + filled_, data.data(), count);
    filled_ += count;
    data = data.subspan(count);
  }
}

void Blake2s::add(uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number >> (8 * i));
  }
  add(bytes);
}

void Blake2s::finish(std::span<std::byte> hash) {
  hashed_ += filled_;
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::byte{0});
  compress(/*is_last=*/true);
  for (size_t i = 0; i < bytes_; ++i) {
    hash[i] = static_cast<std::byte>(state_[i / 4] >> (8 * (i % 4)));
  }
}

void Blake2s::compress(bool is_last) {
  std::array<uint32_t, 16> words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = word_at(block_.data() + 4 * i);
  }
  std::array<uint32_t, 16> v;
  std::copy(state_.begin(), state_.end(), v.begin());
  std::copy(kStart.begin(), kStart.end(), v.begin() + 8);
  v[12] ^= static_cast<uint32_t>(hashed_);
  v[13] ^= static_cast<uint32_t>(hashed_ >> 32);
  if (is_last) v[14] = ~v[14];

  const auto mix = [&v](size_t a, size_t b, size_t c, size_t d, uint32_t x, uint32_t y) {
    v[a] = v[a] + v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] = v[c] + v[d];
    v[b] = std::rotr(v[b] ^ v[c], 12);
    v[a] = v[a] + v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 8);
    v[c] = v[c] + v[d];
    v[b] = std::rotr(v[b] ^ v[c], 7);
  };
  for (const auto& order : kOrder) {
    const auto word = [&](size_t i) { return words[order[i]]; };
    mix(0, 4, 8, 12, word(0), word(1));
    mix(1, 5, 9, 13, word(2), word(3));
    mix(2, 6, 10, 14, word(4), word(5));
    mix(3, 7, 11, 15, word(6), word(7));
    mix(0, 5, 10, 15, word(8), word(9));
    mix(1, 6, 11, 12, word(10), word(11));
    mix(2, 7, 8, 13, word(12), word(13));
    mix(3, 4, 9, 14, word(14), word(15));
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    state_[i] ^= v[i] ^ v[i + 8];
  }
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) {
    return false;
  }
  std::byte difference{0};
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= a[i] ^ b[i];
  }
  return difference == std::byte{0};
}

}  // namespace q7x2
