// Digest: a hash of 64 bits over numbers and texts, the same on every machine.
#pragma once

#include <cstdint>
#include <string>

namespace q7x2 {

class Digest {
 public:
  void add(uint64_t value) {
    value_ ^= value + kOdd + (value_ << 6) + (value_ >> 2);
    value_ *= 0xff51afd7ed558ccdULL;
    value_ ^= value_ >> 33;
  }
  void add(const std::string& text) {
    add(text.size());
    for (const char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  template <typename Numbers>
  void add_all(const Numbers& numbers) {
    add(numbers.size());
    for (const auto number : numbers) add(static_cast<uint64_t>(number));
  }
  uint64_t value() const { return value_; }

 private:
  // Spreads the input over all bits.
  static constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

  uint64_t value_ = 0;
};

}  // namespace q7x2
