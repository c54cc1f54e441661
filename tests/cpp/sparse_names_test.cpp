// Every way to select with every way to code the values: messages there and back, over many steps,
// and damaged.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/codec/sparse.h"
#include "level.h"
#include "sparse_cases.h"

namespace q7x2 {
namespace {

using test::at_level;
using test::kInf;
using test::kLengths;
using test::kNaN;
using test::normal;
using test::reader;
using test::Sender;

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
    const int kSteps = at_level(200, 1000);
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
      int refused = 0;
      const int attempts = at_level(100, 500);
      for (int attempt = 0; attempt < attempts; ++attempt) {
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
      EXPECT_GT(refused, attempts / 5);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(EveryName, SparseNamesTest, testing::ValuesIn(kSelects),
                         [](const auto& each) {
                           std::string name = each.param;
                           for (char& letter : name) letter = std::isalnum(letter) ? letter : '_';
                           return name;
                         });

}  // namespace
}  // namespace q7x2
