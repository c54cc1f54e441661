// Parts cut by what is selected: what each owner gets, and that nothing else changes.
#include "plan/ir/owner_ranges.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codec/codec.h"

namespace q7x2 {
namespace {

using Counts = std::vector<int32_t>;

/// A cut, and what each owner has of it.
struct Cut {
  Cut(const Counts& counts, size_t granule, size_t elements, size_t parts, size_t longest)
      : ranges(counts, granule, elements, parts, longest), given(parts) {
    size_t next = 0;
    for (size_t slice = 0; slice < ranges.num_slices(); ++slice) {
      bool has_elements = false;
      for (size_t part = 0; part < parts; ++part) {
        const size_t begin = ranges.begin(slice, part);
        const size_t end = ranges.begin(slice, part + 1);
        EXPECT_EQ(begin, next);
        EXPECT_LE(begin, end);
        EXPECT_LE(end - begin, longest);
        EXPECT_TRUE(end % granule == 0 || end == elements);
        has_elements = has_elements || end > begin;
        for (size_t i = begin; i < end; i += granule) given[part] += counts[i / granule];
        next = end;
      }
      EXPECT_TRUE(has_elements) << "slice " << slice;
    }
    EXPECT_EQ(next, elements);
  }

  OwnerRanges ranges;
  std::vector<int64_t> given;
};

TEST(OwnerRanges, NoOwnerHasMoreThanItsShareAndAGranule) {
  constexpr size_t kGranule = 1024;
  constexpr size_t kGranules = 5'000;
  std::mt19937 random(1);
  const auto some = [&](int most) { return static_cast<int32_t>(random() % (most + 1)); };
  const std::vector<std::pair<std::string, std::function<int32_t(size_t)>>> inputs = {
      {"even", [](size_t) { return 40; }},
      {"noise", [&](size_t) { return some(80); }},
      {"a cluster in front", [&](size_t i) { return i < 200 ? 4'000 : some(4); }},
      {"a cluster in the middle", [&](size_t i) { return i / 250 == 9 ? 4'000 : some(4); }},
      {"a cluster at the end", [&](size_t i) { return i >= 4'900 ? 4'000 : some(4); }},
      {"two clusters", [&](size_t i) { return i / 100 == 3 || i / 100 == 40 ? 3'000 : 0; }},
      {"stripes", [&](size_t i) { return i / 64 % 4 == 1 ? 2'000 : 1; }},
      {"few", [&](size_t) { return some(1'000) == 0 ? 4'000 : 0; }},
      {"a ramp", [](size_t i) { return static_cast<int32_t>(i); }},
      {"nothing", [](size_t) { return 0; }},
  };
  for (const auto& [name, count_of] : inputs) {
    Counts counts(kGranules);
    for (size_t i = 0; i < kGranules; ++i) counts[i] = count_of(i);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t largest = *std::ranges::max_element(counts);
    for (const size_t parts : {2, 3, 4, 5, 16}) {
      for (const size_t longest : {kGranule, 33 * kGranule + 500, 128 * kGranule}) {
        SCOPED_TRACE(name + ", " + std::to_string(parts) + " parts of " + std::to_string(longest));
        const size_t elements = kGranules * kGranule - 7;
        const Cut cut(counts, kGranule, elements, parts, longest);
        const auto shares = static_cast<int64_t>(parts);
        EXPECT_LE(*std::ranges::max_element(cut.given), (total + shares - 1) / shares + largest);
      }
    }
  }
}

TEST(OwnerRanges, EvenInputIsCutIntoPartsOfTheFullLength) {
  constexpr size_t kGranule = 1024;
  constexpr size_t kLongest = 64 * kGranule;
  constexpr size_t kElements = 4 * 10 * kLongest;
  std::mt19937 random(2);
  Counts counts(kElements / kGranule);
  for (int32_t& count : counts) count = 20 + static_cast<int32_t>(random() % 41);
  const Cut cut(counts, kGranule, kElements, 4, kLongest);
  for (size_t slice = 0; slice < 9; ++slice) {
    for (size_t part = 0; part < 4; ++part) {
      EXPECT_EQ(cut.ranges.begin(slice, part), (4 * slice + part) * kLongest);
    }
  }
  EXPECT_LE(cut.ranges.num_slices(), 11);
}

TEST(OwnerRanges, GranulesFitPartsAndAreNotTooMany) {
  for (const size_t elements :
       {size_t{0}, size_t{1}, size_t{5'000}, size_t{25} << 20, size_t{4} << 30}) {
    for (const size_t longest : {512, 1024, 5'000, 8'192, 524'288}) {
      const size_t granule = granule_of(elements, longest);
      EXPECT_LE(granule, longest);
      EXPECT_EQ(granule & (granule - 1), 0);
      EXPECT_EQ(granule % 64, 0);
    }
  }
  EXPECT_EQ(granule_of(size_t{25} << 20, 524'288), 8'192);
}

// What owners receive, in bytes of real messages of four ranks, most of whose large elements lie in
// one tenth of the tensor.
TEST(OwnerRanges, MessagesOfAClusterAreSpread) {
  constexpr size_t kRanks = 4;
  constexpr size_t kElements = 400'000;
  constexpr size_t kLongest = 32'768;
  for (const char* name : {"topk:0.01:balanced", "topk:0.2:balanced", "sampled:0.01:balanced",
                           "threshold:3:balanced+int8"}) {
    const auto codec = Codec::make(name);
    const size_t granule = granule_of(kElements, kLongest);
    Counts counts((kElements + granule - 1) / granule);
    std::vector<std::vector<float>> tensors(kRanks, std::vector<float>(kElements));
    std::vector<Selection> selections;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      std::normal_distribution<float> draw;
      std::vector<float>& values = tensors[rank];
      for (size_t i = 0; i < kElements; ++i) values[i] = draw(random) * (i / 40'000 == 3 ? 2 : 1);
      const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
      selections.push_back(codec->select(read, kElements, {}));
      const Counts own = codec->count_selected(read, kElements, selections.back(), granule);
      for (size_t i = 0; i < counts.size(); ++i) counts[i] += own[i];
    }
    // The bytes for the most loaded owner, in relation to the mean.
    const auto imbalance = [&](const Counts& by) {
      const Cut cut(by, granule, kElements, kRanks, kLongest);
      std::vector<double> bytes(kRanks);
      std::vector<std::byte> message(codec->max_bytes(kLongest));
      for (size_t slice = 0; slice < cut.ranges.num_slices(); ++slice) {
        for (size_t part = 0; part < kRanks; ++part) {
          const size_t first = cut.ranges.begin(slice, part);
          const size_t count = cut.ranges.begin(slice, part + 1) - first;
          for (size_t rank = 0; rank < kRanks && count > 0; ++rank) {
            bytes[part] += static_cast<double>(codec->encode({.values = &tensors[rank][first],
                                                              .count = count,
                                                              .first = first,
                                                              .selection = selections[rank]},
                                                             message.data()));
          }
        }
      }
      const double sum = std::accumulate(bytes.begin(), bytes.end(), 0.0);
      return *std::ranges::max_element(bytes) / (sum / kRanks);
    };
    EXPECT_LT(imbalance(counts), 1.08) << name;
    EXPECT_GT(imbalance(Counts(counts.size())), 1.2) << name << ": of equal parts";
  }
}

}  // namespace
}  // namespace q7x2
