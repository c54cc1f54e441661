// A store that outlives the ranks, which are threads. A rank that is killed stops at one of its
// calls to the store, like a process that dies there.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2::test {

struct Killed : std::exception {};

/// The store of a job, as the launcher keeps it.
class SharedStore {
 public:
  void set(const std::string& key, const std::string& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  int64_t add(const std::string& key, int64_t amount) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string& value = values_[key];
    const int64_t sum = (value.empty() ? 0 : std::stoll(value)) + amount;
    value = std::to_string(sum);
    return sum;
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end() ? !expected.empty() : found->second != expected) {
      return found == values_.end() ? expected : found->second;
    }
    values_[key] = desired;
    changed_.notify_all();
    return desired;
  }
  bool check(const std::vector<std::string>& keys) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::all_of(keys.begin(), keys.end(),
                       [&](const auto& key) { return values_.contains(key); });
  }
  /// Until something changes, or `timeout` is over.
  void pause(std::chrono::microseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, timeout);
  }
  std::string get(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// The options of a rank that polls often. It has two branches, so that in a tree of five ranks
/// some have both a parent and children.
inline StoreBootstrap::Options options_of(int rank, int size) {
  return {.rank = rank,
          .size = size,
          .group = "g",
          .timeout = std::chrono::milliseconds(20'000),
          .pause = std::chrono::milliseconds(2),
          .slice = std::chrono::milliseconds(2),
          .branches = 2};
}

/// One rank's connection to the store.
class Client final : public KeyStore {
 public:
  explicit Client(SharedStore& store, int dies_at = -1, uint32_t seed = 0)
      : store_(store), left_(dies_at), random_(seed) {}

  void kill() { killed_ = true; }

  void set(const std::string& key, const std::string& value) override {
    step();
    store_.set(key, value);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    step();
    return store_.add(key, amount);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    step();
    return store_.compare_set(key, expected, desired);
  }
  using KeyStore::check;
  bool check(const std::vector<std::string>& keys) override {
    step();
    return store_.check(keys);
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    step();
    std::vector<std::string> values;
    for (const auto& key : keys) values.push_back(store_.get(key));
    return values;
  }
  void pause(std::chrono::microseconds time) override {
    step();
    store_.pause(time);
  }

 private:
  void step() {
    if (random_() % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    }
    if (killed_ || left_-- == 0) {
      killed_ = true;
      throw Killed();
    }
  }

  SharedStore& store_;
  int left_;
  std::mt19937 random_;
  std::atomic<bool> killed_{false};
};

}  // namespace q7x2::test
