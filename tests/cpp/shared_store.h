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

#include "transport/bootstrap/rendezvous.h"

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
  bool wait(const std::vector<std::string>& keys, std::chrono::microseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      return std::all_of(keys.begin(), keys.end(),
                         [&](const auto& key) { return values_.contains(key); });
    });
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
inline Rendezvous::Options options_of(int rank, int size) {
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
  bool check(const std::string& key) override {
    step();
    return store_.wait({key}, std::chrono::microseconds(0));
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    step();
    std::vector<std::string> values;
    for (const auto& key : keys) values.push_back(store_.get(key));
    return values;
  }
  bool wait(const std::vector<std::string>& keys, std::chrono::microseconds timeout) override {
    step();
    return store_.wait(keys, timeout);
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
