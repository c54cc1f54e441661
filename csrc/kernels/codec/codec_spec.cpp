// Parses names of codecs, and prints them.
#include "kernels/codec/codec_spec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"

namespace q7x2 {
namespace {

struct ValueName {
  std::string_view name;
  ValueSpec spec;
};

constexpr uint16_t kWide = 1024;  // larger groups, so that scales take less of a message

constexpr std::array kValues = {
    ValueName{"fp32", {}},
    ValueName{"fp16", {.kind = ValueKind::kFloat16, .bits = 16}},
    ValueName{"bf16", {.kind = ValueKind::kBFloat16, .bits = 16}},
    ValueName{"fp8_e4m3", {.kind = ValueKind::kFloat8E4M3, .bits = 8, .group = kDefaultGroup}},
    ValueName{"fp8_e5m2", {.kind = ValueKind::kFloat8E5M2, .bits = 8, .group = kDefaultGroup}},
    ValueName{"int8", {.kind = ValueKind::kUniform, .bits = 8, .group = kDefaultGroup}},
    ValueName{"int6", {.kind = ValueKind::kUniform, .bits = 6, .group = kDefaultGroup}},
    ValueName{"int4", {.kind = ValueKind::kUniform, .bits = 4, .group = kDefaultGroup}},
    ValueName{"int3", {.kind = ValueKind::kUniform, .bits = 3, .group = kDefaultGroup}},
    ValueName{"int2", {.kind = ValueKind::kUniform, .bits = 2, .group = kDefaultGroup}},
    ValueName{"qsgd",
              {.kind = ValueKind::kQsgd, .bits = 4, .group = kDefaultGroup, .stochastic = true}},
    ValueName{"ternary",
              {.kind = ValueKind::kTernary, .bits = 2, .group = kDefaultGroup, .stochastic = true}},
    ValueName{"onebit", {.kind = ValueKind::kOneBit, .bits = 1, .group = kWide}},
    ValueName{"sign", {.kind = ValueKind::kSign, .bits = 1, .group = kWide, .stochastic = true}},
    ValueName{"sumint8", {.kind = ValueKind::kSumInt, .bits = 8, .group = kWide}},
    ValueName{"sumint16", {.kind = ValueKind::kSumInt, .bits = 16, .group = kWide}},
    ValueName{"sumint32", {.kind = ValueKind::kSumInt, .bits = 32, .group = kWide}},
};

struct SelectName {
  std::string_view name;
  SelectKind kind;
  std::string_view arguments;
  std::string_view options = "";
};

constexpr std::array kSelects = {
    SelectName{"topk", SelectKind::kTopK, "RATIO", "[:reselect][:balanced]"},
    SelectName{"sampled", SelectKind::kSampled, "RATIO", "[:balanced]"},
    SelectName{"threshold", SelectKind::kThreshold, "VALUE", "[:balanced]"},
    SelectName{"randomk", SelectKind::kRandomK, "RATIO"},
    SelectName{"blocks", SelectKind::kBlocks, "RATIO"},
    SelectName{"nm", SelectKind::kNofM, "N:M"},
};

constexpr std::string_view kReselect = "reselect";
constexpr std::string_view kBalanced = "balanced";

constexpr std::string_view kHadamard = "hadamard";
constexpr std::string_view kLossless = "lossless";
constexpr int kLargestM = 32;

bool is_power_of_two(int value) {
  return value > 0 && std::has_single_bit(static_cast<unsigned>(value));
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j - 1] + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

class Parser {
 public:
  explicit Parser(std::string_view name) : name_(name) {}

  CodecSpec parse() {
    for (const std::string_view stage : split(name_, '+')) add_stage(stage);
    finish();
    return spec_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, "codec '" + std::string(name_) + "': " + what);
  }

  // Stages must be in the order select, rotate, value, entropy, each at most once.
  void enter(int stage, std::string_view text) {
    if (stage <= last_stage_) {
      fail("'" + std::string(text) +
           "' is out of place: expected [select+][hadamard+][value+][lossless], each once at most");
    }
    last_stage_ = stage;
  }

  void add_stage(std::string_view text) {
    const std::vector<std::string_view> words = split(text, ':');
    const std::span arguments(words.begin() + 1, words.end());
    for (const SelectName& each : kSelects) {
      if (words[0] != each.name) continue;
      enter(1, text);
      add_select(each, arguments);
      return;
    }
    if (words[0] == kHadamard || words[0] == kLossless) {
      enter(words[0] == kHadamard ? 2 : 4, text);
      if (!arguments.empty()) fail("'" + std::string(words[0]) + "' takes no arguments");
      (words[0] == kHadamard ? hadamard_ : spec_.lossless) = true;
      return;
    }
    for (const ValueName& each : kValues) {
      if (words[0] != each.name) continue;
      enter(3, text);
      add_value(each, arguments);
      return;
    }
    unknown(words[0]);
  }

  [[noreturn]] void unknown(std::string_view word) const {
    std::string lower(word);
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    std::string known;
    std::string nearest;
    size_t least = ~size_t{0};
    for (const std::string& each : codec_names()) {
      known += (known.empty() ? "" : ", ") + each;
      const std::string plain = each.substr(0, each.find_first_of(":["));
      const size_t distance = edit_distance(lower, plain);
      if (distance < least) {
        least = distance;
        nearest = plain;
      }
    }
    fail("there is no '" + std::string(word) + "'; did you mean '" + nearest +
         "'? Expected one of " + known + ", or several joined by '+'");
  }

  void add_select(const SelectName& stage, std::span<const std::string_view> arguments) {
    spec_.select = stage.kind;
    const std::string wanted = std::string(stage.name) + ":" + std::string(stage.arguments);
    if (stage.kind == SelectKind::kNofM) {
      const auto n = arguments.size() == 2 ? parse_number<int>(arguments[0]) : std::nullopt;
      const auto m = arguments.size() == 2 ? parse_number<int>(arguments[1]) : std::nullopt;
      if (!n || !m || *n < 1 || *n >= *m || *m > kLargestM || !is_power_of_two(*m)) {
        fail("expected " + wanted + " with 1 <= N < M, M a power of two up to " +
             std::to_string(kLargestM));
      }
      spec_.n = *n;
      spec_.m = *m;
      return;
    }
    const auto amount = arguments.empty() ? std::nullopt : parse_number<double>(arguments[0]);
    const bool is_ratio = stage.kind != SelectKind::kThreshold;
    if (!amount || !std::isfinite(*amount) || *amount <= 0 || (is_ratio && *amount > 1)) {
      fail("expected " + wanted + (is_ratio ? " with 0 < RATIO <= 1" : " with VALUE > 0"));
    }
    spec_.amount = *amount;
    for (const std::string_view argument : arguments.subspan(1)) {
      const bool is_option =
          stage.options.find("[:" + std::string(argument) + "]") != std::string_view::npos;
      bool& option = argument == kReselect ? spec_.reselect : spec_.balanced;
      if (!is_option || option) {
        fail("'" + std::string(argument) + "' is out of place; expected " + wanted +
             std::string(stage.options));
      }
      option = true;
    }
  }

  void add_value(const ValueName& stage, std::span<const std::string_view> arguments) {
    has_value_ = true;
    ValueSpec& value = spec_.value;
    value = stage.spec;
    const bool is_uniform = value.kind == ValueKind::kUniform;
    std::vector<std::string_view> seen;
    for (const std::string_view argument : arguments) {
      const std::string_view what = argument.substr(0, argument.find('='));
      if (std::ranges::find(seen, what) != seen.end()) {
        fail("'" + std::string(argument) +
             "' is one too many: expected each argument once at most");
      }
      seen.push_back(what);
      if (argument.starts_with("g=") && value.group > 0) {
        const auto group = parse_number<int>(argument.substr(2));
        if (!group || *group < kLeastGroup || *group > kLargestGroup || !is_power_of_two(*group)) {
          fail("expected g=" + std::to_string(kLeastGroup) +
               " ... g=" + std::to_string(kLargestGroup) + ", a power of two, not '" +
               std::string(argument) + "'");
        }
        value.group = static_cast<uint16_t>(*group);
      } else if (argument.starts_with("bits=") && value.kind == ValueKind::kQsgd) {
        const auto bits = parse_number<int>(argument.substr(5));
        if (!bits || (*bits != 2 && *bits != 3 && *bits != 4 && *bits != 6 && *bits != 8)) {
          fail("expected bits=2, 3, 4, 6 or 8, not '" + std::string(argument) + "'");
        }
        value.bits = static_cast<uint8_t>(*bits);
      } else if (argument == "sr" && (is_uniform || value.kind == ValueKind::kSumInt)) {
        value.stochastic = true;
      } else if (argument == "minmax" && is_uniform) {
        value.minmax = true;
      } else {
        fail("'" + std::string(stage.name) + "' does not take '" + std::string(argument) +
             "'; expected " + usage(stage));
      }
    }
  }

  void finish() {
    ValueSpec& value = spec_.value;
    if (hadamard_) {
      if (!has_value_) value = kInt8;
      if (value.kind == ValueKind::kSign) {
        fail("votes on rotated numbers have no meaning; expected hadamard+onebit instead of sign");
      }
      if (value.group == 0 || value.minmax) {
        fail("hadamard needs a value stage with groups around zero, as in hadamard+int4");
      }
      value.hadamard = true;
    }
    if (spec_.select != SelectKind::kAll && value.kind == ValueKind::kSumInt) {
      fail("selections of ranks differ, so that their integers do not add; expected int8 instead");
    }
    if (spec_.lossless && value.kind == ValueKind::kSumInt) {
      fail("packed bytes do not add; expected int8+lossless instead");
    }
    if (spec_.select != SelectKind::kAll && value.kind == ValueKind::kSign) {
      fail("votes of a selection have no majority; expected onebit instead of sign");
    }
  }

  static constexpr ValueSpec kInt8 = {
      .kind = ValueKind::kUniform, .bits = 8, .group = kDefaultGroup};

 public:
  static std::string usage(const ValueName& stage) {
    std::string text(stage.name);
    if (stage.spec.group > 0) text += "[:g=32...1024]";
    if (stage.spec.kind == ValueKind::kQsgd) text += "[:bits=2|3|4|6|8]";
    if (stage.spec.kind == ValueKind::kUniform) text += "[:minmax]";
    if (stage.spec.kind == ValueKind::kUniform || stage.spec.kind == ValueKind::kSumInt) {
      text += "[:sr]";
    }
    return text;
  }

 private:
  std::string_view name_;
  CodecSpec spec_;
  bool hadamard_ = false;
  bool has_value_ = false;
  int last_stage_ = 0;
};

std::string shortest(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

std::string value_name(const ValueSpec& value) {
  for (const ValueName& each : kValues) {
    const bool same_bits = each.spec.bits == value.bits || value.kind == ValueKind::kQsgd;
    if (each.spec.kind != value.kind || !same_bits) continue;
    std::string text(each.name);
    if (value.group != each.spec.group) text += ":g=" + std::to_string(value.group);
    if (value.bits != each.spec.bits) text += ":bits=" + std::to_string(value.bits);
    if (value.minmax) text += ":minmax";
    if (value.stochastic && !each.spec.stochastic) text += ":sr";
    return text;
  }
  throw Error(ErrorCode::kInvalidArgument, "a value stage that has no name");
}

}  // namespace

CodecSpec parse_codec(std::string_view name) {
  return Parser(name).parse();
}

std::string to_string(const CodecSpec& spec) {
  std::string text;
  const auto add = [&](const std::string& stage) { text += (text.empty() ? "" : "+") + stage; };
  if (spec.select == SelectKind::kNonZero) add("nonzero");
  if (spec.select == SelectKind::kNonZeroBlocks) add("nonzeroblocks");
  if (spec.select == SelectKind::kReselect) add("reselect:" + shortest(spec.amount));
  for (const SelectName& each : kSelects) {
    if (spec.select != each.kind) continue;
    add(std::string(each.name) + ":" +
        (each.kind == SelectKind::kNofM ? std::to_string(spec.n) + ":" + std::to_string(spec.m)
                                        : shortest(spec.amount)) +
        (spec.reselect ? ":" + std::string(kReselect) : "") +
        (spec.balanced ? ":" + std::string(kBalanced) : ""));
  }
  if (spec.value.hadamard) add(std::string(kHadamard));
  const bool is_plain = spec.value == ValueSpec{};
  if (!is_plain || (spec.select == SelectKind::kAll && !spec.lossless)) {
    add(value_name(spec.value));
  }
  if (spec.lossless) add(std::string(kLossless));
  return text;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const ValueName& each : kValues) names.push_back(Parser::usage(each));
  for (const SelectName& each : kSelects) {
    names.push_back(std::string(each.name) + ":" + std::string(each.arguments) +
                    std::string(each.options));
  }
  names.emplace_back(kHadamard);
  names.emplace_back(kLossless);
  return names;
}

}  // namespace q7x2
