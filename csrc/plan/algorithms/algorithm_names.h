// Names of algorithms as people write them: "ring, aggregator:2".
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace q7x2 {

struct AlgorithmName {
  std::string name;              ///< as in Generator::name
  std::optional<int> parameter;  ///< none: whichever is best

  bool matches(const std::string& generator, int value) const {
    return name == generator && (!parameter || *parameter == value);
  }
};

/// Parses a list with commas; blanks alone are an empty one. Throws Error(kInvalidArgument) for a
/// name that no generator has, with those that exist and the nearest of them, and for a parameter
/// that is no number or that the algorithm does not take.
std::vector<AlgorithmName> parse_algorithms(const std::string& list);
/// The list that parses to `names`: "ring,aggregator:2".
std::string to_string(const std::vector<AlgorithmName>& names);

}  // namespace q7x2
