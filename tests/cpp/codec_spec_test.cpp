// Names of codecs: there and back, and what is said of bad ones.
#include "kernels/codec/codec_spec.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

std::string error_of(const std::string& name) {
  try {
    parse_codec(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << name;
    return error.what();
  }
  ADD_FAILURE() << "'" << name << "' was taken";
  return {};
}

void expect_error(const std::string& name, const std::vector<std::string>& parts) {
  const std::string error = error_of(name);
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos)
        << "'" << part << "' is missing in what is said of '" << name << "': " << error;
  }
}

std::vector<std::string> value_stages() {
  std::vector<std::string> names;
  for (const std::string base : {"int8", "int6", "int4", "int3", "int2"}) {
    for (const std::string group : {"", ":g=32", ":g=64", ":g=128", ":g=256", ":g=1024"}) {
      for (const std::string rest : {"", ":minmax", ":sr", ":minmax:sr"}) {
        names.push_back(base + group + rest);
      }
    }
  }
  for (const std::string name : {"fp32",
                                 "fp16",
                                 "bf16",
                                 "fp8_e4m3",
                                 "fp8_e4m3:g=32",
                                 "fp8_e5m2",
                                 "fp8_e5m2:g=1024",
                                 "qsgd",
                                 "qsgd:g=64:bits=2",
                                 "qsgd:bits=8",
                                 "ternary",
                                 "ternary:g=32",
                                 "onebit",
                                 "onebit:g=512",
                                 "sign",
                                 "sign:g=32",
                                 "sumint8",
                                 "sumint8:g=32:sr",
                                 "sumint16",
                                 "sumint16:sr",
                                 "sumint32",
                                 "sumint32:g=256:sr"}) {
    names.push_back(name);
  }
  return names;
}

TEST(CodecSpec, CanonicalNamesStayAsTheyAre) {
  std::vector<std::string> names = value_stages();
  for (const std::string select :
       {"topk:0.01", "topk:0.01:reselect", "topk:0.01:reselect:balanced", "sampled:0.05",
        "sampled:0.05:balanced", "threshold:0.001", "threshold:0.001:balanced", "randomk:0.125",
        "blocks:0.1", "nm:2:4"}) {
    names.push_back(select);
    for (const std::string rest :
         {"+int8", "+fp16+lossless", "+hadamard+int4:g=64", "+lossless", "+ternary"}) {
      names.push_back(select + rest);
    }
  }
  for (const std::string value :
       {"int8", "int4:g=64:sr", "fp8_e4m3", "qsgd:bits=3", "ternary", "onebit", "onebit:g=512"}) {
    names.push_back("hadamard+" + value);
    names.push_back("hadamard+" + value + "+lossless");
  }
  names.emplace_back("bf16+lossless");
  names.emplace_back("lossless");
  for (const std::string& name : names) {
    EXPECT_EQ(to_string(parse_codec(name)), name);
  }
}

TEST(CodecSpec, OtherSpellingsOfTheSame) {
  const std::vector<std::pair<std::string, std::string>> spellings = {
      {"int4:sr:g=128", "int4:g=128:sr"},
      {"int8:g=512", "int8"},
      {"qsgd:bits=4", "qsgd"},
      {"topk:1e-2+int8", "topk:0.01+int8"},
      {"hadamard", "hadamard+int8"},
      {"hadamard+lossless", "hadamard+int8+lossless"},
      {"topk:0.1+hadamard", "topk:0.1+hadamard+int8"},
      {"topk:0.01+fp32", "topk:0.01"},
      {"topk:0.01:balanced:reselect", "topk:0.01:reselect:balanced"},
      {"fp32+lossless", "lossless"},
  };
  for (const auto& [spelling, canonical] : spellings) {
    EXPECT_EQ(to_string(parse_codec(spelling)), canonical) << spelling;
    EXPECT_EQ(parse_codec(spelling), parse_codec(canonical)) << spelling;
  }
}

TEST(CodecSpec, WhatANameStandsFor) {
  const CodecSpec spec = parse_codec("topk:0.01:reselect+hadamard+int4:g=128:sr+lossless");
  EXPECT_EQ(spec.select, SelectKind::kTopK);
  EXPECT_EQ(spec.amount, 0.01);
  EXPECT_TRUE(spec.reselect);
  EXPECT_EQ(spec.value.kind, ValueKind::kUniform);
  EXPECT_EQ(spec.value.bits, 4);
  EXPECT_EQ(spec.value.group, 128);
  EXPECT_TRUE(spec.value.stochastic);
  EXPECT_TRUE(spec.value.hadamard);
  EXPECT_FALSE(spec.value.minmax);
  EXPECT_TRUE(spec.lossless);
  EXPECT_EQ(parse_codec("nm:2:4").n, 2);
  EXPECT_EQ(parse_codec("nm:2:4").m, 4);
  EXPECT_EQ(parse_codec("fp32"), CodecSpec{});
}

TEST(CodecSpec, AnUnknownNameGetsTheNearestAndAll) {
  std::vector<std::string> all = codec_names();
  const std::vector<std::pair<std::string, std::string>> nearest = {
      {"int9", "int8"},         {"itn4", "int4"},    {"fp15", "fp16"},
      {"bfloat16", "bf16"},     {"top-k:1", "topk"}, {"hadamar+int4", "hadamard"},
      {"fp8_e4m4", "fp8_e4m3"}, {"1bit", "onebit"},  {"int4+losless", "lossless"},
      {"Ternary", "ternary"},   {"FP16", "fp16"},    {"treshold:1", "threshold"},
  };
  for (const auto& [name, expected] : nearest) {
    std::vector<std::string> parts = all;
    parts.push_back("did you mean '" + expected + "'?");
    parts.push_back("codec '" + name + "'");
    expect_error(name, parts);
  }
  expect_error("", {"Expected one of", "int8"});
  expect_error("int4+", {"there is no ''"});
}

TEST(CodecSpec, EveryListedNameIsTaken) {
  for (std::string name : codec_names()) {
    name = name.substr(0, name.find('['));
    const size_t ratio = name.find("RATIO");
    const size_t value = name.find("VALUE");
    const size_t n_of_m = name.find("N:M");
    if (ratio != std::string::npos) name.replace(ratio, 5, "0.5");
    if (value != std::string::npos) name.replace(value, 5, "0.5");
    if (n_of_m != std::string::npos) name.replace(n_of_m, 3, "1:2");
    EXPECT_NO_THROW(parse_codec(name)) << name;
  }
}

TEST(CodecSpec, BadArgumentsGetWhatWasExpected) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"int4:g=100", {"g=32", "g=1024", "power of two", "'g=100'"}},
      {"int4:g=16", {"g=32"}},
      {"int4:g=2048", {"g=1024"}},
      {"int4:g=", {"'g='"}},
      {"int4:g=64x", {"'g=64x'"}},
      {"int4:rs", {"'int4' does not take 'rs'", "[:sr]"}},
      {"int4:g=64:g=128", {"'g=128'", "once"}},
      {"int4:sr:sr", {"'sr'", "once"}},
      {"fp16:g=64", {"'fp16' does not take 'g=64'"}},
      {"qsgd:bits=5", {"bits=2, 3, 4, 6 or 8"}},
      {"int4:bits=3", {"does not take"}},
      {"onebit:sr", {"'onebit' does not take 'sr'"}},
      {"topk", {"expected topk:RATIO", "0 < RATIO <= 1"}},
      {"topk:0", {"0 < RATIO <= 1"}},
      {"topk:1.5", {"0 < RATIO <= 1"}},
      {"topk:nan", {"0 < RATIO <= 1"}},
      {"topk:0.1:again", {"'again' is out of place"}},
      {"topk:0.1:balanced:balanced", {"'balanced' is out of place", "[:reselect][:balanced]"}},
      {"sampled:0.1:reselect", {"out of place", "sampled:RATIO[:balanced]"}},
      {"randomk:0.1:reselect", {"out of place"}},
      {"blocks:0.1:balanced", {"out of place"}},
      {"threshold:-1", {"VALUE > 0"}},
      {"threshold:inf", {"VALUE > 0"}},
      {"nm:4:4", {"1 <= N < M"}},
      {"nm:1:3", {"power of two"}},
      {"nm:1:64", {"up to 32"}},
      {"nm:2", {"expected nm:N:M"}},
      {"lossless:9", {"'lossless' takes no arguments"}},
      {"hadamard:512+int4", {"'hadamard' takes no arguments"}},
      {"int8+topk:0.1", {"'topk:0.1' is out of place", "[select+]"}},
      {"int8+int4", {"'int4' is out of place"}},
      {"int8+hadamard", {"'hadamard' is out of place"}},
      {"lossless+int8", {"'int8' is out of place"}},
      {"hadamard+fp16", {"hadamard needs"}},
      {"hadamard+fp32", {"hadamard needs"}},
      {"hadamard+int4:minmax", {"hadamard needs"}},
      {"hadamard+sign", {"expected hadamard+onebit"}},
      {"topk:0.1+sumint8", {"expected int8"}},
      {"sumint8+lossless", {"expected int8+lossless"}},
      {"topk:0.1+sign", {"expected onebit"}},
  };
  for (const auto& [name, parts] : cases) expect_error(name, parts);
}

}  // namespace
}  // namespace q7x2
