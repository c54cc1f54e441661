// The options of a compressor, described in one place: Python reads, checks and documents them from
// here.
//
//   struct Options {
//     double ratio = 0.01;
//     uint64_t random_seed = 0;
//   };
//   OptionFields<Options>()
//       .add("ratio", &Options::ratio, "The share of elements that are sent.",
//            {.above = 0, .most = 1})
//       .add("random_seed", &Options::random_seed, "The seed of the samples.");
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>

namespace q7x2 {

/// The types of an option.
using OptionValue =
    std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<int64_t>,
                 std::vector<std::string>, std::vector<std::pair<uint64_t, std::string>>,
                 std::optional<at::ScalarType>>;

/// By name of the option.
using OptionValues = std::map<std::string, OptionValue>;

/// The range of a number.
struct OptionRange {
  double above = -std::numeric_limits<double>::infinity();  ///< exclusive
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

/// One option.
struct OptionField {
  std::string name;
  std::string doc;     ///< one sentence
  OptionValue preset;  ///< the default, of the option's type
  OptionRange range;

  /// Throws Error(kInvalidArgument), with the allowed range, if a number is out of it.
  void check(const OptionValue& value) const;
};

/// Throws Error(kInvalidArgument), with a list of the options of `owner`, if the name is unknown.
const OptionField& find_field(const std::vector<OptionField>& fields, const std::string& owner,
                              const std::string& name);

/// The fields of a struct whose default constructor sets the default values.
template <typename Options>
class OptionFields {
 public:
  /// `member`: a pointer to a member of Options, or a function of Options& that returns a
  /// reference.
  template <typename Member>
  OptionFields& add(const char* name, Member member, const char* doc, OptionRange range = {}) {
    using T = std::remove_cvref_t<std::invoke_result_t<Member&, Options&>>;
    Options presets;
    fields_.push_back(
        {name, doc, OptionValue(std::in_place_type<T>, std::invoke(member, presets)), range});
    setters_.push_back([member](Options& options, const OptionValue& value) {
      std::invoke(member, options) = std::get<T>(value);
    });
    return *this;
  }

  const std::vector<OptionField>& fields() const { return fields_; }

  /// `values` must have the types of the defaults, and names of fields. Throws
  /// Error(kInvalidArgument) if one is out of its range.
  Options make(const OptionValues& values) const {
    Options options;
    for (size_t i = 0; i < fields_.size(); ++i) {
      const auto value = values.find(fields_[i].name);
      if (value == values.end()) continue;
      fields_[i].check(value->second);
      setters_[i](options, value->second);
    }
    return options;
  }

 private:
  std::vector<OptionField> fields_;
  std::vector<std::function<void(Options&, const OptionValue&)>> setters_;
};

}  // namespace q7x2
