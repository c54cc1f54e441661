// KeyStore: what a StoreBootstrap needs of a key-value store.
//
// A store may be far away, and then each question takes a round trip. So `read` and `check` are one
// question each, whatever they find, and `set` is none: nobody waits for an answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace q7x2 {

/// Every call may throw Error(kTransport).
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  /// What one client sets is there in the same order for all.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Adds to a counter, which is 0 at first, and returns the sum. Atomic.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  /// Sets the key to `desired` if it is `expected`, or does not exist and `expected` is empty.
  /// Returns what it is then; `expected` where it does not exist. Atomic.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;
  /// Whether all these keys exist.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  bool check(const std::string& key) { return check(std::vector<std::string>{key}); }
  /// The values of keys that exist.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  /// Sleeps for so long, or less where the store can tell that something has changed.
  virtual void pause(std::chrono::microseconds time) = 0;

  /// Nothing: the key does not exist.
  std::optional<std::string> read(const std::string& key) {
    static const std::string kNobodysValue = "q7x2: no process sets a key to this";
    std::string found = compare_set(key, kNobodysValue, kNobodysValue);
    if (found == kNobodysValue) return std::nullopt;
    return found;
  }
};

}  // namespace q7x2
