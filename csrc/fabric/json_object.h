// JSON whose fields are named once, for whoever writes it and for whoever reads it:
//
//   template <typename F>
//   void describe(F& fields, typename F::template Of<Fabric::Rack> rack) {
//     fields.add("up", kOptional, rack.up, Quantity{});
//
// A JsonWriter takes the value of each field from the struct, a JsonReader sets it. A *kind*, such
// as Quantity, turns a value into JSON, and checks it on the way back.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fabric/json_fields.h"

namespace q7x2 {

/// How many there are of what indices refer to.
struct FabricBounds {
  size_t racks = 0;
  size_t hosts = 0;
};

enum Need : uint8_t {
  kRequired,
  kOptional,     ///< written always; a text may leave it out
  kUnlessEmpty,  ///< neither written nor needed where there is nothing to say
};

// ---- kinds of values

/// Rounded to four digits.
struct Quantity {
  static Json write(double value);
  static double read(const Place& place) { return place.quantity(); }
};
struct Text {
  static Json write(const std::string& value) { return value; }
  static std::string read(const Place& place) { return place.text(); }
};
struct Flag {
  static Json write(bool value) { return value; }
  static bool read(const Place& place) { return place.flag(); }
};
struct Count {
  int least = 0;
  static Json write(int value) { return value; }
  int read(const Place& place) const { return place.count(least); }
};
struct Index {
  size_t count;
  static Json write(int value) { return value; }
  int read(const Place& place) const { return place.index(count); }
};
struct NumaNode {
  static Json write(int value) { return value; }
  static int read(const Place& place) { return place.numa_node(); }
};
struct Bytes {
  static Json write(uint64_t value) { return value; }
  static uint64_t read(const Place& place) { return place.bytes(); }
};
struct Megabits {
  static Json write(int64_t value) { return value; }
  static int64_t read(const Place& place) { return static_cast<int64_t>(place.bytes()); }
};
struct Time {
  static Json write(int64_t value);
  static int64_t read(const Place& place) { return place.time(); }
};
struct CollectiveName {
  static Json write(Collective value) { return to_string(value); }
  static Collective read(const Place& place) { return place.collective(); }
};
template <typename Kind>
struct List {
  Kind kind = {};

  template <typename T>
  Json write(const std::vector<T>& items) const {
    Json json = Json::array();
    for (const T& item : items) json.push_back(kind.write(item));
    return json;
  }
  auto read(const Place& place) const {
    return place.list([this](const Place& item) { return kind.read(item); });
  }
};
/// What has fields itself.
template <typename T>
struct Object {
  FabricBounds bounds = {};

  Json write(const T& value) const;
  T read(const Place& place) const;
};

// ---- who goes through the fields

template <typename T>
bool is_written(Need need, const T& value) {
  if (need != kUnlessEmpty) return true;
  if constexpr (requires { value.empty(); }) {
    return !value.empty();
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value != 0;
  }
  return true;
}

class JsonWriter {
 public:
  static constexpr bool kReads = false;
  template <typename T>
  using Of = const T&;

  FabricBounds bounds() const { return {}; }

  template <typename T, typename Kind>
  void add(const char* name, Need need, const T& value, const Kind& kind) {
    if (is_written(need, value)) json_[name] = kind.write(value);
  }

  Json take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

class JsonReader {
 public:
  static constexpr bool kReads = true;
  template <typename T>
  using Of = T&;

  JsonReader(const Place& place, FabricBounds bounds) : fields_(place), bounds_(bounds) {}

  FabricBounds bounds() const { return bounds_; }

  template <typename T, typename Kind>
  void add(const char* name, Need need, T& value, const Kind& kind) {
    if (need == kRequired) {
      value = kind.read(fields_.required(name));
    } else {
      fields_.optional(name, value, [&kind](const Place& place) { return kind.read(place); });
    }
  }

  /// Throws Error(kInvalidArgument) where the text has other fields.
  void end() const { fields_.end(); }

 private:
  Fields fields_;
  const FabricBounds bounds_;
};

template <typename T>
Json Object<T>::write(const T& value) const {
  JsonWriter writer;
  describe(writer, value);
  return writer.take();
}

template <typename T>
T Object<T>::read(const Place& place) const {
  T value;
  JsonReader reader(place, bounds);
  describe(reader, value);
  reader.end();
  return value;
}

}  // namespace q7x2
