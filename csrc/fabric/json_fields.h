// Reads JSON that anybody may have written: every value is checked, and a refusal names the place.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace q7x2 {

using Json = nlohmann::ordered_json;

/// In one line; bytes that are no UTF-8 are replaced.
std::string line(const Json& value);

/// The value of a text. Throws Error(kInvalidArgument) where it is no JSON, longer than
/// `max_bytes`, deeply nested, has very many values, or an object that names a field twice: the
/// error has the field's place.
Json parsed_json(std::string_view text, size_t max_bytes);

/// A value and where it stands. Every reading function throws Error(kInvalidArgument) where the
/// value is another kind.
class Place {
 public:
  Place(const Json& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[noreturn]] void complain(const std::string& expected) const;

  double quantity() const;
  int64_t whole(int64_t least, int64_t most) const;
  /// A number of ranks, cores, ...
  int count(int least) const;
  int index(size_t count) const;
  /// -1: unknown.
  int numa_node() const;
  uint64_t bytes() const;
  bool flag() const;
  std::string text() const;
  /// Seconds since 1970, of "2025-01-31T08:00:00Z".
  int64_t time() const;
  Collective collective() const;

  template <typename Read>
  auto list(const Read& read) const {
    if (!value_.is_array()) complain("an array");
    std::vector<decltype(read(*this))> items;
    items.reserve(value_.size());
    for (size_t i = 0; i < value_.size(); ++i) {
      items.push_back(read(Place(value_[i], path_ + "[" + std::to_string(i) + "]")));
    }
    return items;
  }

  const Json& value() const { return value_; }
  const std::string& path() const { return path_; }

 private:
  const Json& value_;
  const std::string path_;
};

/// The fields of an object. One that nobody asked for is an error: it is misspelt.
class Fields {
 public:
  explicit Fields(const Place& place);

  Place required(const std::string& name);

  /// Reads the field with `read` where it is there, and leaves `target` alone where it is not.
  template <typename Target, typename Read>
  void optional(const std::string& name, Target& target, const Read& read) {
    if (const auto found = find(name)) target = std::invoke(read, *found);
  }

  void end() const;

 private:
  std::optional<Place> find(const std::string& name);

  const Place place_;
  std::set<std::string> seen_;
};

}  // namespace q7x2
