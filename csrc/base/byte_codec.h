// ByteWriter and ByteReader: records in bytes, as processes tell them each other. Numbers are as
// the processor has them; the processes of a job run on processors of one kind.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace q7x2 {

class ByteWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T> &&
      (!std::is_convertible_v<T, std::string_view>)ByteWriter& put(const T& value) {
    std::array<char, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.append(raw.data(), raw.size());
    return *this;
  }
  /// A length comes before it.
  ByteWriter& put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Throws Error(kMismatch) where the bytes are something else than what is asked for.
class ByteReader {
 public:
  /// `what` is named in errors: "a rank's peer info".
  ByteReader(std::string_view bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// A number or an enumerator from `first` to `last`.
  template <typename T>
  T get_between(T first, T last, const char* name) {
    const T value = get<T>();
    if (value < first || value > last) {
      refuse("has " + std::string(name) + " number " + std::to_string(static_cast<int64_t>(value)));
    }
    return value;
  }
  std::string get_string() { return std::string(next(get<uint32_t>())); }
  bool at_end() const { return bytes_.empty(); }
  /// The last call.
  void end() const {
    if (!at_end()) refuse("has bytes left over");
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kMismatch, what_ + " " + why);
  }
  std::string_view next(size_t count) {
    if (count > bytes_.size()) {
      refuse("is cut short: expected " + std::to_string(count) + " more bytes, got " +
             std::to_string(bytes_.size()));
    }
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }

  std::string_view bytes_;
  const std::string what_;
};

}  // namespace q7x2
