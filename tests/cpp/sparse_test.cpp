// The select stage: its loops against one element at a time, selections against a sort, messages
// there and back, and what happens to those that are damaged.
#include "kernels/sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/random.h"
#include "kernels/sparse_elements.h"
#include "kernels/sparse_indices.h"
#include "kernels/sparse_kernels.h"
#include "kernels/sparse_select.h"
#include "kernels/value_elements.h"

namespace q7x2 {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint64_t kNoTie = ~uint64_t{0};

constexpr size_t kLengths[] = {0,  1,   2,   15,  16,  17,   63,   64,
                               65, 127, 128, 255, 256, 1000, 4096, 4100};

std::vector<float> normal(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

/// Few different magnitudes, zeros, and numbers that are not finite.
std::vector<float> awkward(size_t count, uint64_t seed) {
  constexpr float kValues[] = {0,      -0.0F, 1,      -1,   0.5,   -0.5,
                               1e-42F, 3e38F, -3e38F, kInf, -kInf, kNaN};
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = kValues[random() % std::size(kValues)];
  return values;
}

ReadElements reader(const std::vector<float>& values) {
  return [&values](size_t first, size_t count) {
    EXPECT_LE(count, kLargestRead);
    EXPECT_LE(first + count, values.size());
    return values.data() + first;
  };
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> all(values.size());
  for (size_t i = 0; i < values.size(); ++i) all[i] = float_to_bits(values[i]);
  return all;
}

std::vector<bool> bools(const std::vector<uint64_t>& mask, size_t count) {
  std::vector<bool> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = (mask[i / 64] >> (i % 64) & 1) != 0;
  for (size_t i = count; i < mask.size() * 64; ++i) {
    EXPECT_EQ(mask[i / 64] >> (i % 64) & 1, 0) << "behind the last element";
  }
  return all;
}

size_t set_in(const std::vector<bool>& all) {
  return static_cast<size_t>(std::count(all.begin(), all.end(), true));
}

// ------------------------------------------------------------------------------------------ loops

class SparseKernelsTest : public testing::TestWithParam<const SparseKernels*> {
 protected:
  const SparseKernels& kernels = *GetParam();
};

TEST_P(SparseKernelsTest, Sums) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = normal(count, 1);
    std::vector<float> add = normal(count, 2);
    std::vector<float> expected(count);
    for (size_t i = 0; i < count; ++i) expected[i] = (values[i] + add[i]) * 0.75F;
    kernels.sum(values.data(), add.data(), 0.75F, count, add.data());
    EXPECT_EQ(bits(add), bits(expected)) << count;
    for (size_t i = 0; i < count; ++i) expected[i] = values[i] * 0.75F;
    kernels.sum(values.data(), nullptr, 0.75F, count, add.data());
    EXPECT_EQ(bits(add), bits(expected)) << count;
  }
}

TEST_P(SparseKernelsTest, MarksMagnitudesAndTies) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = awkward(count, count);
    for (const float least : {0.0F, 1e-42F, 0.5F, 1.0F, 3e38F, kInf}) {
      for (const size_t ties :
           {size_t{0}, size_t{1}, count / 3, count - std::min<size_t>(count, 1), count}) {
        if (least == kInf && ties < count) continue;
        std::vector<uint64_t> mask(mask_words(count), ~uint64_t{0});
        const size_t sent =
            kernels.mark(values.data(), count, float_to_bits(least), ties, mask.data());
        const std::vector<bool> marked = bools(mask, count);
        for (size_t i = 0; i < count; ++i) {
          const uint32_t magnitude = magnitude_bits(values[i]);
          const bool is_tie = magnitude == float_to_bits(least) && i < ties;
          EXPECT_EQ(marked[i], magnitude > float_to_bits(least) || is_tie) << i << " of " << count;
        }
        EXPECT_EQ(sent, set_in(marked));
      }
    }
  }
}

TEST_P(SparseKernelsTest, SiftsAsItMarksAndCompacts) {
  for (const size_t count : kLengths) {
    const std::vector<float> values = awkward(count, 7);
    for (const float least : {1e-45F, 0.5F, 2.0F, std::numeric_limits<float>::infinity()}) {
      std::vector<uint64_t> mask(mask_words(count));
      std::vector<uint64_t> expected_mask(mask_words(count));
      std::vector<float> sifted(count);
      std::vector<float> expected(count);
      const uint32_t bound = magnitude_bits(least);
      const size_t kept = kernels.sift(values.data(), count, bound, mask.data(), sifted.data());
      EXPECT_EQ(kept, kernels.mark(values.data(), count, bound, count, expected_mask.data()));
      EXPECT_EQ(mask, expected_mask);
      kernels.compact(values.data(), mask.data(), count, expected.data());
      sifted.resize(kept);
      expected.resize(kept);
      EXPECT_EQ(bits(sifted), bits(expected)) << count << " elements";
    }
  }
}

TEST_P(SparseKernelsTest, MarksRandomly) {
  constexpr uint64_t kFirsts[] = {0, 77, (uint64_t{1} << 32) - 100};
  for (const size_t count : kLengths) {
    for (const uint64_t first : kFirsts) {
      for (const double ratio : {1e-12, 0.01, 0.5, 1.0}) {
        const uint64_t limit = random_limit(ratio);
        std::vector<uint64_t> mask(mask_words(count), ~uint64_t{0});
        const size_t sent = kernels.mark_random(5, first, count, limit, mask.data());
        const std::vector<bool> marked = bools(mask, count);
        for (size_t i = 0; i < count; ++i) {
          const uint64_t index = first + i;
          const uint32_t random =
              random_bits(random_stream(5, index), static_cast<uint32_t>(index));
          EXPECT_EQ(marked[i], random < limit) << i << " of " << count;
        }
        EXPECT_EQ(sent, set_in(marked));
      }
    }
  }
}

TEST_P(SparseKernelsTest, MarksTheLargestOfEachGroup) {
  for (const size_t count : kLengths) {
    for (const std::vector<float>& values : {normal(count, 3), awkward(count, 4)}) {
      for (const int m : {2, 4, 32}) {
        for (const int n : {1, m / 2, m - 1}) {
          for (const size_t head : {size_t{1}, static_cast<size_t>(m)}) {
            std::vector<uint64_t> mask(mask_words(count), ~uint64_t{0});
            const size_t sent = kernels.mark_largest(values.data(), count, head, n, m, mask.data());
            const std::vector<bool> marked = bools(mask, count);
            EXPECT_EQ(sent, set_in(marked));
            for (size_t begin = 0, end = std::min(head, count); begin < count;
                 begin = end, end = std::min(begin + static_cast<size_t>(m), count)) {
              std::vector<size_t> order(end - begin);
              std::iota(order.begin(), order.end(), begin);
              std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
                return magnitude_bits(values[a]) > magnitude_bits(values[b]);
              });
              for (size_t rank = 0; rank < order.size(); ++rank) {
                const float value = values[order[rank]];
                const bool expected =
                    !std::isfinite(value) || (rank < static_cast<size_t>(n) && value != 0);
                EXPECT_EQ(marked[order[rank]], expected);
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(SparseKernelsTest, NormsNeitherOverflowNorVanish) {
  for (const size_t count : kLengths) {
    for (const float scale : {1.0F, 1e-40F, 1e30F}) {
      std::vector<float> values = normal(count, 7);
      double expected = 0;
      for (float& value : values) {
        value *= scale;
        expected += static_cast<double>(value) * static_cast<double>(value);
      }
      const float norm = kernels.norm(values.data(), count);
      EXPECT_EQ(float_to_bits(norm),
                float_to_bits(sparse_kernels().back()->norm(values.data(), count)));
      EXPECT_NEAR(norm, std::sqrt(expected), std::sqrt(expected) * 1e-6 + 1e-45) << count;
    }
  }
  const std::vector<float> bad = {1, kNaN};
  EXPECT_TRUE(std::isnan(kernels.norm(bad.data(), 2)));
}

TEST_P(SparseKernelsTest, CompactsAndExpands) {
  std::mt19937_64 random(8);
  for (const size_t count : kLengths) {
    for (const int density : {0, 1, 50, 99, 100}) {
      const std::vector<float> values = awkward(count, 9);
      std::vector<uint64_t> mask(mask_words(count));
      std::vector<float> expected;
      for (size_t i = 0; i < count; ++i) {
        if (static_cast<int>(random() % 100) >= density) continue;
        mask[i / 64] |= uint64_t{1} << (i % 64);
        expected.push_back(values[i]);
      }
      std::vector<float> compacted(count);
      const size_t kept = kernels.compact(values.data(), mask.data(), count, compacted.data());
      ASSERT_EQ(kept, expected.size());
      compacted.resize(kept);
      EXPECT_EQ(bits(compacted), bits(expected));

      // The buffer ends where the values do: a sanitizer sees what is read behind.
      const std::vector<float> source(compacted.begin(), compacted.end());
      for (const Expand how : {Expand::kSet, Expand::kStream, Expand::kKeep, Expand::kAdd}) {
        const std::vector<float> before = normal(count, 10);
        std::vector<float> out = before;
        EXPECT_EQ(kernels.expand(source.data(), mask.data(), count, how, out.data()), kept);
        for (size_t i = 0, next = 0; i < count; ++i) {
          const bool sets = how == Expand::kSet || how == Expand::kStream;
          float wanted = sets ? 0 : before[i];
          if ((mask[i / 64] >> (i % 64) & 1) != 0) {
            wanted = how == Expand::kAdd ? before[i] + source[next] : source[next];
            ++next;
          }
          const bool both_nan = std::isnan(wanted) && std::isnan(out[i]);
          EXPECT_TRUE(both_nan || float_to_bits(out[i]) == float_to_bits(wanted)) << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, SparseKernelsTest,
                         testing::ValuesIn(sparse_kernels().begin(), sparse_kernels().end()),
                         [](const auto& each) { return std::string(each.param->isa); });

// ---------------------------------------------------------------------------------------- indices

TEST(SparseIndices, AreWhatTheyWere) {
  std::mt19937_64 random(11);
  for (const size_t positions :
       {size_t{1}, size_t{63}, size_t{64}, size_t{1000}, size_t{300'000}}) {
    for (const double chance : {0.0, 1e-5, 1e-3, 0.01, 0.3, 1.0}) {
      std::vector<uint64_t> mask(mask_words(positions));
      size_t set = 0;
      for (size_t i = 0; i < positions; ++i) {
        if (std::generate_canonical<double, 32>(random) >= chance) continue;
        mask[i / 64] |= uint64_t{1} << (i % 64);
        ++set;
      }
      std::vector<std::byte> deltas(positions * 4 + 8);
      deltas.resize(encode_deltas(mask.data(), positions, deltas.size() - 4, deltas.data()));
      std::vector<std::byte> bitmap(bitmap_bytes(positions));
      encode_bitmap(mask.data(), positions, bitmap.data());
      std::vector<uint64_t> decoded(mask.size(), ~uint64_t{0});
      EXPECT_EQ(decode_deltas(deltas, positions, decoded.data()), set);
      EXPECT_EQ(decoded, mask);
      decoded.assign(mask.size(), ~uint64_t{0});
      EXPECT_EQ(decode_bitmap(bitmap, positions, decoded.data()), set);
      EXPECT_EQ(decoded, mask);
    }
  }
}

TEST(SparseIndices, StateEveryGap) {
  for (const size_t gap : {size_t{0}, size_t{239}, size_t{240}, size_t{4079}, size_t{4080},
                           kLargestGap, kLargestGap + 1}) {
    const size_t positions = gap + 1;
    std::vector<uint64_t> mask(mask_words(positions));
    mask[gap / 64] |= uint64_t{1} << (gap % 64);
    std::array<std::byte, 12> bytes{};
    const size_t length = encode_deltas(mask.data(), positions, 8, bytes.data());
    if (gap > kLargestGap) {
      EXPECT_EQ(length, 8) << "that is: not shorter";
      continue;
    }
    EXPECT_EQ(length, gap < 240 ? 1 : gap < 4080 ? 2 : 4);
    std::vector<uint64_t> decoded(mask.size());
    EXPECT_EQ(decode_deltas(std::span(bytes).first(length), positions, decoded.data()), 1);
    EXPECT_EQ(decoded, mask);
  }
}

TEST(SparseIndices, ThatDoNotFitAreRefused) {
  std::array<uint64_t, 4> mask{};
  const auto deltas = [&](std::vector<uint8_t> bytes, size_t positions) {
    return decode_deltas(std::as_bytes(std::span(bytes)), positions, mask.data());
  };
  EXPECT_EQ(deltas({99}, 100), 1);
  EXPECT_EQ(deltas({100}, 100), std::nullopt);
  EXPECT_EQ(deltas({50, 49}, 100), std::nullopt);
  EXPECT_EQ(deltas({0}, 0), std::nullopt);
  EXPECT_EQ(deltas({240}, 256), std::nullopt) << "one byte of two";
  EXPECT_EQ(deltas({255, 0, 0}, 256), std::nullopt) << "three bytes of four";
  EXPECT_EQ(deltas({255, 255, 255, 255}, 256), std::nullopt);
  const auto bitmap = [&](std::vector<uint8_t> bytes, size_t positions) {
    return decode_bitmap(std::as_bytes(std::span(bytes)), positions, mask.data());
  };
  EXPECT_EQ(bitmap({0x0F}, 4), 4);
  EXPECT_EQ(bitmap({0x1F}, 4), std::nullopt) << "a bit behind the last position";
  EXPECT_EQ(bitmap({0, 0}, 4), std::nullopt);
  EXPECT_EQ(bitmap({}, 4), std::nullopt);
}

// -------------------------------------------------------------------------------------- selection

/// Indices of the k largest magnitudes that are not zero, the first of equals.
std::set<size_t> sorted_out(const std::vector<float>& values, size_t k) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return magnitude_bits(values[a]) > magnitude_bits(values[b]);
  });
  std::set<size_t> selected;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const float value = values[order[rank]];
    if (!std::isfinite(value) || (rank < k && value != 0)) selected.insert(order[rank]);
  }
  return selected;
}

std::set<size_t> selected_by(const std::vector<float>& values, Selection selection) {
  std::set<size_t> selected;
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_selected(magnitude_bits(values[i]), selection.least, i <= selection.last_tie)) {
      selected.insert(i);
    }
  }
  return selected;
}

TEST(Selection, OfTheLargestIsThatOfASort) {
  const auto rounded = [](std::vector<float> values) {
    for (float& value : values) value = std::round(value * 4) / 4;
    return values;
  };
  const auto mostly_zero = [](std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % 200 != 0) values[i] = 0;
    }
    return values;
  };
  const auto large_at_the_end = [](std::vector<float> values) {
    for (size_t i = values.size() - values.size() / 50; i < values.size(); ++i) values[i] *= 1e6F;
    return values;
  };
  const auto growing = [](std::vector<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    return values;
  };
  for (const size_t count : {size_t{1}, size_t{2}, size_t{100}, size_t{9000}, size_t{100'000}}) {
    const std::map<std::string, std::vector<float>> inputs = {
        {"normal", normal(count, 1)},
        {"rounded", rounded(normal(count, 2))},
        {"mostly zero", mostly_zero(normal(count, 3))},
        {"large at the end", large_at_the_end(normal(count, 4))},
        {"growing", growing(normal(count, 5))},
        {"equal", std::vector<float>(count, -3)},
        {"zero", std::vector<float>(count)},
        {"not finite", awkward(count, 6)},
        {"NaN", std::vector<float>(count, kNaN)},
        {"tiny", std::vector<float>(count, 1e-45F)}};
    for (const auto& [name, values] : inputs) {
      for (const double ratio : {1e-9, 0.001, 0.01, 0.1, 0.5, 0.99, 1.0}) {
        const size_t k = selected_count(ratio, count);
        const Selection selection = select_largest(reader(values), count, k, 12);
        EXPECT_EQ(selected_by(values, selection), sorted_out(values, k))
            << name << " " << ratio << " of " << count;
        EXPECT_LE(selection.least, kInfinityBits);
      }
    }
  }
}

/// Of many equal magnitudes, so that the last ones that are kept are ties.
TEST(Selection, GathersWhatItSends) {
  std::vector<float> values = normal(100'003, 21);
  for (float& value : values) value = std::round(value * 8) / 8;
  values[5] = kNaN;
  const size_t k = selected_count(0.02, values.size());
  const Selection selection = select_largest(reader(values), values.size(), k, 22);
  ASSERT_NE(selection.gathered, nullptr);
  const std::set<size_t> expected = sorted_out(values, k);
  EXPECT_EQ(selected_by(values, selection), expected);
  EXPECT_EQ(selection.gathered->values().size(), expected.size());
  for (const size_t first : {size_t{0}, size_t{1}, size_t{64}, size_t{8191}, size_t{99'000}}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1003}}) {
      std::vector<uint64_t> mask(mask_words(count));
      std::vector<float> sent;
      for (size_t i = 0; i < count; ++i) {
        if (expected.contains(first + i)) sent.push_back(values[first + i]);
      }
      ASSERT_EQ(selection.gathered->copy_mask(first, count, mask.data()), sent.size());
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ((mask[i / 64] >> (i % 64) & 1) != 0, expected.contains(first + i));
      }
      const float* const from = selection.gathered->values_from(first);
      EXPECT_EQ(bits(std::vector<float>(from, from + sent.size())), bits(sent));
    }
  }
}

TEST(Selection, OfARatioRoundsUp) {
  EXPECT_EQ(selected_count(0.01, 0), 0);
  EXPECT_EQ(selected_count(0.01, 1), 1);
  EXPECT_EQ(selected_count(0.01, 101), 2);
  EXPECT_EQ(selected_count(0.5, 10), 5);
  EXPECT_EQ(selected_count(1, 10), 10);
}

TEST(Selection, BySampleIsAboutRight) {
  const std::vector<float> values = normal(1'000'000, 13);
  const Selection selection = select_sampled(reader(values), values.size(), 0.01, 14);
  const size_t selected = selected_by(values, selection).size();
  EXPECT_GT(selected, 8'000);
  EXPECT_LT(selected, 12'000);
  const Selection again = select_sampled(reader(values), values.size(), 0.01, 14);
  EXPECT_EQ(selection.least, again.least);
}

TEST(Selection, OfBlocksGoesByTheirNorms) {
  std::vector<float> values = normal(256 * 100 + 7, 15);
  for (const size_t block : {3, 50, 100}) {
    for (size_t i = block * 256; i < std::min((block + 1) * 256, values.size()); ++i)
      values[i] *= 100;
  }
  const Selection selection = select_blocks(reader(values), values.size(), 0.03, 16);
  std::set<size_t> selected;
  for (size_t block = 0; block <= 100; ++block) {
    double norm = 0;
    for (size_t i = block * 256; i < std::min((block + 1) * 256, values.size()); ++i) {
      norm += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    if (std::sqrt(norm) >= static_cast<double>(float_from_bits(selection.least)) * (1 - 1e-6)) {
      selected.insert(block);
    }
  }
  // ceil(0.03 * 101) = 4: the three, and the one that happens to be next.
  EXPECT_EQ(selected.size(), 4);
  for (const size_t block : {3, 50, 100}) EXPECT_TRUE(selected.contains(block));
}

// --------------------------------------------------------------------------------------- messages

struct Message {
  std::vector<std::byte> bytes;
  std::vector<float> decoded;
};

/// Encodes and decodes values as one tensor, in blocks.
class Sender {
 public:
  explicit Sender(const std::string& name, size_t block = 1 << 16)
      : codec_(Codec::make(name)), block_(block) {}

  const Codec& codec() const { return *codec_; }

  /// Returns what receivers get; `error` may be empty. `bytes` counts.
  std::vector<float> send(const std::vector<float>& values, std::vector<float>& error,
                          CodecKeys keys) {
    const auto read = [&](size_t first, size_t count) {
      sums_.assign(values.begin() + static_cast<ptrdiff_t>(first),
                   values.begin() + static_cast<ptrdiff_t>(first + count));
      for (size_t i = 0; i < count && !error.empty(); ++i) sums_[i] += error[first + i];
      return sums_.data();
    };
    const Selection selection = codec_->select(read, values.size(), keys);
    std::vector<float> out(values.size());
    for (size_t first = 0; first < values.size(); first += block_) {
      const size_t count = std::min(block_, values.size() - first);
      float* const own = error.empty() ? nullptr : error.data() + first;
      std::vector<std::byte> message(codec_->max_bytes(count));
      const size_t length = codec_->encode(
          {values.data() + first, count, first, own, own, 1, selection, keys, nullptr},
          message.data());
      EXPECT_LE(length, message.size());
      message.resize(length);
      bytes += length;
      codec_->decode(message, out.data() + first, count, first, keys);
    }
    return out;
  }

  size_t bytes = 0;

 private:
  std::shared_ptr<const Codec> codec_;
  size_t block_;
  std::vector<float> sums_;
};

TEST(SparseCodec, SendsExactlyTheLargest) {
  const std::vector<float> values = normal(200'000, 17);
  std::vector<float> error(values.size());
  Sender sender("topk:0.01");
  const std::vector<float> out = sender.send(values, error, {1, 2});
  const std::set<size_t> expected = sorted_out(values, 2'000);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], expected.contains(i) ? values[i] : 0);
    EXPECT_EQ(error[i], expected.contains(i) ? 0 : values[i]);
  }
}

TEST(SparseCodec, TakesFiveBytesForOneInAHundred) {
  const std::vector<float> values = normal(1 << 20, 18);
  std::vector<float> none;
  Sender sender("topk:0.01");
  sender.send(values, none, {});
  const double entries = static_cast<double>(selected_count(0.01, values.size()));
  const double each = static_cast<double>(sender.bytes) / entries;
  EXPECT_NEAR(each, 5.1, 0.05);
  EXPECT_NEAR(sender.codec().traits().bits, each * 0.08, 0.01);
}

TEST(SparseCodec, IsNeverLongerThanDense) {
  const std::vector<float> values = normal(1 << 17, 19);
  std::vector<float> none;
  for (const std::string value : {"", "+int8", "+int4", "+onebit", "+fp16"}) {
    const size_t dense = Codec::make(value.empty() ? "fp32" : value.substr(1))->max_bytes(1 << 16);
    size_t before = 0;
    for (const std::string ratio : {"0.001", "0.01", "0.1", "0.3", "0.6", "0.9", "1"}) {
      Sender sender("topk:" + ratio + value);
      sender.send(values, none, {});
      EXPECT_LE(sender.bytes, 2 * dense);
      EXPECT_GE(sender.bytes, before);
      before = sender.bytes;
    }
    EXPECT_EQ(before, 2 * dense);
  }
}

TEST(SparseCodec, SendsNoIndicesOfARandomSelection) {
  const std::vector<float> values = normal(1 << 16, 20);
  std::vector<float> none;
  Sender sender("randomk:0.1");
  const std::vector<float> out = sender.send(values, none, {5, 0});
  size_t sent = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (out[i] == 0) continue;
    EXPECT_EQ(out[i], values[i]);
    ++sent;
  }
  EXPECT_NEAR(static_cast<double>(sent), 6553.6, 400);
  EXPECT_EQ(sender.bytes, 16 + 4 * sent);
  EXPECT_NE(sender.send(values, none, {6, 0}), out) << "another call, another selection";
}

TEST(SparseCodec, SendsAllAboveAThreshold) {
  const std::vector<float> values = normal(10'000, 21);
  std::vector<float> none;
  Sender sender("threshold:1.5");
  const std::vector<float> out = sender.send(values, none, {});
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], std::abs(values[i]) >= 1.5F ? values[i] : 0);
  }
}

TEST(SparseCodec, SendsTwoOfFour) {
  const std::vector<float> values = normal(10'001, 22);
  std::vector<float> none;
  Sender sender("nm:2:4", 1000);
  const std::vector<float> out = sender.send(values, none, {});
  for (size_t begin = 0; begin + 4 <= values.size(); begin += 4) {
    std::vector<float> magnitudes;
    for (size_t i = begin; i < begin + 4; ++i) magnitudes.push_back(std::abs(values[i]));
    std::sort(magnitudes.begin(), magnitudes.end());
    for (size_t i = begin; i < begin + 4; ++i) {
      EXPECT_EQ(out[i], std::abs(values[i]) >= magnitudes[2] ? values[i] : 0) << i;
    }
  }
}

TEST(SparseCodec, SendsWholeBlocks) {
  std::vector<float> values = normal(256 * 64, 23);
  for (size_t i = 256 * 10; i < 256 * 11; ++i) values[i] *= 10;
  for (size_t i = 256 * 63; i < 256 * 64; ++i) values[i] *= 10;
  std::vector<float> none;
  Sender sender("blocks:0.03", 256 * 16);
  const std::vector<float> out = sender.send(values, none, {});
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_sent = i / 256 == 10 || i / 256 == 63;
    EXPECT_EQ(out[i], is_sent ? values[i] : 0) << i;
  }
  EXPECT_EQ(sender.bytes, 4 * 16 + 2 * (1 + 256 * 4));
}

TEST(SparseCodec, SumsAreSentWithTheirOwnCodec) {
  const auto topk = Codec::make("topk:0.01+int8");
  EXPECT_EQ(topk->of_sums().spec().select, SelectKind::kNonZero);
  EXPECT_EQ(topk->of_sums().spec().value, topk->spec().value);
  EXPECT_FALSE(topk->of_sums().traits().selects);
  EXPECT_EQ(Codec::make("blocks:0.1")->of_sums().spec().select, SelectKind::kNonZeroBlocks);
  const auto reselect = Codec::make("topk:0.01:reselect");
  EXPECT_EQ(reselect->of_sums().spec().select, SelectKind::kReselect);
  EXPECT_EQ(reselect->of_sums().spec().amount, 0.01);
  const auto random = Codec::make("randomk:0.1");
  EXPECT_EQ(&random->of_sums(), random.get());
  const auto dense = Codec::make("int8");
  EXPECT_EQ(&dense->of_sums(), dense.get());

  const std::vector<float> values = normal(100'000, 24);
  std::vector<float> sum(values.size());
  for (size_t i = 0; i < values.size(); i += 20) sum[i] = values[i];
  for (const char* name : {"topk:0.01", "blocks:0.1", "threshold:1", "sampled:0.1", "nm:1:4"}) {
    const auto codec = Codec::make(name);
    std::vector<std::byte> message(codec->of_sums().max_bytes(sum.size()));
    message.resize(
        codec->of_sums().encode({.values = sum.data(), .count = sum.size()}, message.data()));
    std::vector<float> out(sum.size());
    codec->of_sums().decode(message, out.data(), out.size(), 0, {});
    EXPECT_EQ(out, sum) << name;
  }
  // Again the largest, of this message alone; the owner keeps the rest.
  const Codec& again = reselect->of_sums();
  std::vector<float> error(values.size());
  std::vector<std::byte> message(again.max_bytes(values.size()));
  message.resize(again.encode({.values = values.data(),
                               .count = values.size(),
                               .first = 1000,
                               .add = error.data(),
                               .error = error.data()},
                              message.data()));
  std::vector<float> out(values.size());
  again.decode(message, out.data(), out.size(), 1000, {});
  std::set<size_t> expected = sorted_out(values, 1'000);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], expected.contains(i) ? values[i] : 0);
    EXPECT_EQ(error[i], expected.contains(i) ? 0 : values[i]);
  }
  // As many as the owner says.
  message.resize(again.max_bytes(values.size()));
  message.resize(
      again.encode({.values = values.data(), .count = values.size(), .most = 30}, message.data()));
  EXPECT_EQ(Codec::entries(message), 30);
  again.decode(message, out.data(), out.size(), 0, {});
  expected = sorted_out(values, 30);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i] != 0, expected.contains(i));
}

// Gathered or not, and with ties in the middle of the tensor.
TEST(SparseCodec, CountsWhatItSends) {
  for (const size_t count : {size_t{1}, size_t{1'000}, size_t{100'003}}) {
    std::vector<float> values = normal(count, 28);
    for (float& value : values) value = std::round(value * 64) / 64;
    const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
    for (const std::string name : {"topk:0.01:balanced", "topk:0.3:balanced",
                                   "sampled:0.02:balanced", "threshold:1.5:balanced"}) {
      const auto codec = Codec::make(name);
      const Selection selection = codec->select(read, count, {});
      for (const size_t granule : {64, 1'024, 16'384}) {
        const std::vector<int32_t> counts = codec->count_selected(read, count, selection, granule);
        ASSERT_EQ(counts.size(), (count + granule - 1) / granule);
        for (size_t i = 0; i < counts.size(); ++i) {
          const size_t first = i * granule;
          const size_t length = std::min(granule, count - first);
          std::vector<std::byte> message(codec->max_bytes(length));
          message.resize(codec->encode({.values = values.data() + first,
                                        .count = length,
                                        .first = first,
                                        .selection = selection},
                                       message.data()));
          // A dense message holds all.
          if (Codec::entries(message) < length) {
            EXPECT_EQ(counts[i], Codec::entries(message)) << name << ", granule " << i;
          }
        }
      }
    }
  }
}

constexpr const char* kSelects[] = {"topk:0.01",    "topk:0.3",    "topk:0.05:reselect",
                                    "sampled:0.02", "threshold:1", "randomk:0.05",
                                    "blocks:0.1",   "nm:2:8"};
constexpr const char* kValues[] = {"",      "+fp16",    "+bf16",          "+fp8_e4m3",
                                   "+int8", "+int3",    "+int4:g=128:sr", "+int2:minmax",
                                   "+qsgd", "+ternary", "+onebit",        "+hadamard+int4"};

/// One selection with every way to code the values.
class SparseNamesTest : public testing::TestWithParam<const char*> {
 protected:
  template <class Check>
  void for_each_name(const Check& check) {
    for (const char* value : kValues) {
      const std::string name = std::string(GetParam()) + value;
      SCOPED_TRACE(name);
      check(name);
    }
  }
};

TEST_P(SparseNamesTest, EveryLengthComesBack) {
  for_each_name([](const std::string& name) {
    for (const size_t count : kLengths) {
      for (const std::vector<float>& values :
           {normal(count, 25), std::vector<float>(count), std::vector<float>(count, kNaN)}) {
        for (const bool keeps : {false, true}) {
          std::vector<float> error(keeps ? count : 0);
          Sender sender(name, 1000);
          const std::vector<float> out = sender.send(values, error, {1, 2});
          for (size_t i = 0; i < count; ++i) {
            if (std::isnan(values[i])) {
              EXPECT_TRUE(std::isnan(out[i]));
              EXPECT_EQ(keeps ? error[i] : 0, 0) << "stays as it was";
            } else if (values[i] == 0) {
              EXPECT_EQ(out[i], 0);
            } else if (keeps) {
              EXPECT_NEAR(out[i] + error[i], values[i], 1e-5);
            }
          }
        }
      }
    }
  });
}

TEST_P(SparseNamesTest, SumsComeBackToo) {
  for_each_name([](const std::string& name) {
    const auto contribution = Codec::make(name);
    const Codec& codec = contribution->of_sums();
    for (const size_t count : kLengths) {
      std::vector<float> values = normal(count, 26);
      for (size_t i = 0; i < count; ++i) {
        if (i % 5 != 0) values[i] = 0;
      }
      std::vector<float> error(count);
      std::vector<std::byte> message(codec.max_bytes(count));
      message.resize(codec.encode({.values = values.data(),
                                   .count = count,
                                   .first = 512,
                                   .add = error.data(),
                                   .error = error.data()},
                                  message.data()));
      std::vector<float> sum = normal(count, 27);
      std::vector<float> out(count);
      const std::vector<float> before = sum;
      codec.decode(message, out.data(), count, 512, {});
      codec.decode_add(message, sum.data(), count, 512, {});
      for (size_t i = 0; i < count; ++i) {
        EXPECT_NEAR(out[i] + error[i], values[i], 1e-5);
        EXPECT_EQ(sum[i], before[i] + out[i]);
      }
    }
  });
}

TEST_P(SparseNamesTest, WhatIsNotFiniteIsReceived) {
  for_each_name([](const std::string& name) {
    for (const float bad : {kNaN, kInf, -kInf}) {
      std::vector<float> values = normal(5000, 28);
      values[4321] = bad;
      std::vector<float> error = normal(5000, 29);
      const std::vector<float> before = error;
      Sender sender(name, 2500);
      const std::vector<float> out = sender.send(values, error, {1, 2});
      EXPECT_FALSE(std::isfinite(out[4321]));
      EXPECT_EQ(error[4321], before[4321]);
      for (const float each : error) EXPECT_TRUE(std::isfinite(each));
    }
  });
}

/// What was sent and what was kept is what went in.
TEST_P(SparseNamesTest, NothingIsLostOverManySteps) {
  for_each_name([](const std::string& name) {
    constexpr size_t kCount = 2000;
    constexpr int kSteps = 1000;
    std::vector<float> error(kCount);
    std::vector<double> in(kCount);
    std::vector<double> out(kCount);
    std::vector<double> rounding(kCount);
    Sender sender(name);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> gradient = normal(kCount, 1000 + static_cast<uint64_t>(step));
      const std::vector<float> before = error;
      const std::vector<float> sent =
          sender.send(gradient, error, {static_cast<uint64_t>(step), 3});
      for (size_t i = 0; i < kCount; ++i) {
        in[i] += static_cast<double>(gradient[i]);
        out[i] += static_cast<double>(sent[i]);
        // One rounding of the sum, one of the difference; a rotation has some more.
        const double largest = std::max(
            {std::abs(before[i] + gradient[i]), std::abs(sent[i]), std::abs(error[i]), 1.0F});
        rounding[i] += largest * (sender.codec().spec().value.hadamard ? 0x1p-19 : 0x1p-23);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(out[i] + static_cast<double>(error[i]), in[i], rounding[i]) << i;
    }
  });
}

TEST_P(SparseNamesTest, DamagedMessagesAreRefusedOrHarmless) {
  for_each_name([](const std::string& name) {
    const auto contribution = Codec::make(name);
    constexpr size_t kCount = 1000;
    const std::vector<float> values = normal(kCount, 30);
    std::mt19937_64 random(31);
    for (const Codec* codec : {contribution.get(), &contribution->of_sums()}) {
      std::vector<std::byte> message(codec->max_bytes(kCount));
      const Selection selection = codec->select(reader(values), kCount, {});
      message.resize(codec->encode(
          {.values = values.data(), .count = kCount, .selection = selection}, message.data()));
      size_t refused = 0;
      for (int attempt = 0; attempt < 500; ++attempt) {
        std::vector<std::byte> damaged = message;
        for (uint64_t flips = random() % 4; flips > 0 || damaged == message; flips -= flips > 0) {
          const size_t header_or_all =
              random() % 2 == 0 ? std::min<size_t>(16, damaged.size()) : damaged.size();
          if (header_or_all == 0) break;
          damaged[random() % header_or_all] = static_cast<std::byte>(random());
          if (random() % 4 == 0) damaged.resize(random() % (damaged.size() + 1));
          if (damaged.empty()) break;
        }
        // Copies of just the right size: a sanitizer sees every byte beyond.
        const std::vector<std::byte> exact(damaged.begin(), damaged.end());
        std::vector<float> out(kCount);
        try {
          codec->decode(exact, out.data(), kCount, 0, {});
          codec->decode_add(exact, out.data(), kCount, 0, {});
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kMismatch);
          ++refused;
        }
      }
      EXPECT_GT(refused, 100);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(EveryName, SparseNamesTest, testing::ValuesIn(kSelects),
                         [](const auto& each) {
                           std::string name = each.param;
                           for (char& letter : name) letter = std::isalnum(letter) ? letter : '_';
                           return name;
                         });

TEST(SparseCodec, RefusesALayoutThatItDoesNotHave) {
  const std::vector<float> values = normal(1000, 32);
  const auto layout_of = [&](const std::string& name, uint8_t layout) {
    const auto codec = Codec::make(name);
    std::vector<std::byte> message(codec->max_bytes(values.size()));
    const Selection selection = codec->select(reader(values), values.size(), {});
    message.resize(codec->encode(
        {.values = values.data(), .count = values.size(), .selection = selection}, message.data()));
    message[2] = static_cast<std::byte>(layout);
    std::vector<float> out(values.size());
    codec->decode(message, out.data(), out.size(), 0, {});
  };
  EXPECT_NO_THROW(layout_of("topk:0.01", 2));
  EXPECT_NO_THROW(layout_of("randomk:0.01", 1));
  EXPECT_NO_THROW(layout_of("fp32", 0));
  for (const uint8_t layout : {0, 1, 3, 4, 255})
    EXPECT_THROW(layout_of("topk:0.01", layout), Error);
  for (const uint8_t layout : {0, 2, 3, 4, 255})
    EXPECT_THROW(layout_of("randomk:0.01", layout), Error);
  for (const uint8_t layout : {1, 2, 3, 4, 255}) EXPECT_THROW(layout_of("fp32", layout), Error);
}

}  // namespace
}  // namespace q7x2
