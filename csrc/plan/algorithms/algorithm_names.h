// Names of algorithms as people write them: "ring, aggregator:2".
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace q7x2 {

struct AlgorithmName {
  std::string name;              ///< as in Generator::name
  std::optional<int> parameter;  ///< empty: the best one

  bool matches(const std::string& generator, int value) const {
    return name == generator && (!parameter || *parameter == value);
  }
};

/// Parses a list with commas; blanks alone are an empty list. Throws Error(kInvalidArgument) if no
/// generator has the name (the message lists all names and the nearest one), or if the parameter is
/// not a number or the algorithm does not take it.
std::vector<AlgorithmName> parse_algorithms(const std::string& list);
/// The list that parses to `names`: "ring,aggregator:2".
std::string to_string(const std::vector<AlgorithmName>& names);

}  // namespace q7x2
