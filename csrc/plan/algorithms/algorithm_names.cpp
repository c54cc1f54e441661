#include "plan/algorithms/algorithm_names.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "plan/algorithms/generators.h"

namespace q7x2 {
namespace {

using Known = std::map<std::string, bool>;  // name, and whether the algorithm takes a parameter

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row[b.size()];
}

/// A name that contains the wrong one (binomial_tree contains tree) is preferred over a similar
/// one.
std::string nearest(const std::string& wrong, const Known& known) {
  const auto distance = [&](const std::string& name) {
    const bool contained = !wrong.empty() && name.find(wrong) != std::string::npos;
    return std::pair(!contained, edit_distance(wrong, name));
  };
  return std::min_element(
             known.begin(), known.end(),
             [&](const auto& a, const auto& b) { return distance(a.first) < distance(b.first); })
      ->first;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

[[noreturn]] void unknown(const std::string& name, const std::string& list, const Known& known) {
  std::string message = "unknown algorithm '" + name + "' in '" + list + "': expected ";
  const char* separator = "";
  for (const auto& [each, takes_parameter] : known) {
    message.append(std::exchange(separator, ", ")).append(each);
    if (takes_parameter) message.append("[:number]");
  }
  if (!name.empty()) message.append("; did you mean '").append(nearest(name, known)).append("'?");
  throw Error(ErrorCode::kInvalidArgument, message);
}

int parse_parameter(const std::string& text, const std::string& item) {
  const auto value = parse_number<int>(text);
  if (!value || *value < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "invalid algorithm '" + item + "': expected a number " +
                    "of at least 0 after the colon, got '" + text + "'");
  }
  return *value;
}

}  // namespace

std::vector<AlgorithmName> parse_algorithms(const std::string& list) {
  std::vector<AlgorithmName> names;
  if (trimmed(list).empty()) return names;
  Known known;
  for (const Generator& generator : generators()) {
    known[generator.name] |= generator.parameters != nullptr;
  }
  // A comma at the end must yield an empty name, which getline would not report.
  std::istringstream items(list + ",");
  for (std::string text; std::getline(items, text, ',');) {
    const std::string item = trimmed(text);
    const size_t colon = item.find(':');
    const std::string name = trimmed(item.substr(0, colon));
    const auto found = known.find(name);
    if (found == known.end()) unknown(name, list, known);
    std::optional<int> parameter;
    if (colon != std::string::npos) {
      parameter = parse_parameter(trimmed(item.substr(colon + 1)), item);
      if (!found->second) {
        throw Error(ErrorCode::kInvalidArgument,
                    "invalid algorithm '" + item + "': '" + name + "' takes no parameter");
      }
    }
    names.push_back({name, parameter});
  }
  return names;
}

std::string to_string(const std::vector<AlgorithmName>& names) {
  std::string list;
  for (const auto& [name, parameter] : names) {
    list += (list.empty() ? "" : ",") + name;
    if (parameter) list += ":" + std::to_string(*parameter);
  }
  return list;
}

}  // namespace q7x2
