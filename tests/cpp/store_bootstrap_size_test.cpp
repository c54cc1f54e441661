// How a StoreBootstrap grows with the number of ranks: keys, questions to the store, bytes, and
// whom a rank watches. Thousands of ranks run as coroutines of one thread; one that waits for a key
// gives way to the others. Some are the real thing. The others do to the store what the protocol
// asks of them, and read nothing that they do not pass on: all rosters of 4,096 ranks would not fit
// into memory.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "slowdown.h"
#include "transport/bootstrap/published.h"
#include "transport/bootstrap/store_bootstrap.h"

namespace q7x2 {
namespace {

/// Runs a function on a stack of its own, up to the next call of `give_way`.
class Coroutine {
 public:
  explicit Coroutine(std::function<void()> body) : body_(std::move(body)) {
    stack_ = ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_;
    own_.uc_stack.ss_size = kStack;
    own_.uc_link = &caller_;
    makecontext(&own_, &Coroutine::start, 0);
  }
  ~Coroutine() { ::munmap(stack_, kStack); }
  Coroutine(const Coroutine&) = delete;
  Coroutine& operator=(const Coroutine&) = delete;

  void resume() {
    current = this;
    swapcontext(&caller_, &own_);
  }
  static void give_way() {
    Coroutine* const self = current;
    swapcontext(&self->own_, &self->caller_);
  }
  bool done() const { return done_; }

 private:
  static constexpr size_t kStack = size_t{128} << 10;
  static Coroutine* current;

  static void start() {
    Coroutine* const self = current;
    self->body_();
    self->done_ = true;
  }

  std::function<void()> body_;
  void* stack_ = nullptr;
  ucontext_t own_{};
  ucontext_t caller_{};
  bool done_ = false;
};

Coroutine* Coroutine::current = nullptr;

using Values = std::unordered_map<std::string, std::string>;

/// One rank's way to the store, which counts.
class CountingStore final : public KeyStore {
 public:
  explicit CountingStore(Values& values) : values_(values) {}

  void set(const std::string& key, const std::string& value) override {
    keys.insert(key);
    values_[key] = value;
  }
  int64_t add(const std::string& key, int64_t amount) override {
    ++questions;
    keys.insert(key);
    std::string& value = values_[key];
    const int64_t sum = (value.empty() ? 0 : std::stoll(value)) + amount;
    value = std::to_string(sum);
    return sum;
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    ++questions;
    keys.insert(key);
    const auto found = values_.find(key);
    if (found == values_.end() ? !expected.empty() : found->second != expected) {
      const std::string& value = found == values_.end() ? expected : found->second;
      bytes_read += value.size();
      return value;
    }
    return values_[key] = desired;
  }
  using KeyStore::check;
  bool check(const std::vector<std::string>& wanted) override {
    ++questions;
    keys.insert(wanted.begin(), wanted.end());
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const auto& key) { return values_.contains(key); });
  }
  std::vector<std::string> get(const std::vector<std::string>& wanted) override {
    ++questions;
    std::vector<std::string> found;
    for (const auto& key : wanted) {
      keys.insert(key);
      found.push_back(values_.at(key));
      bytes_read += found.back().size();
    }
    return found;
  }
  void pause(std::chrono::microseconds) override { Coroutine::give_way(); }

  std::set<std::string> keys;
  std::set<int> watched;
  size_t questions = 0;  // that have answers
  size_t bytes_read = 0;

 private:
  Values& values_;
};

/// Whom a rank watches. Nobody dies.
class CountingMonitor final : public MemberMonitor {
 public:
  explicit CountingMonitor(std::set<int>& watched) : watched_(watched) {}

  void watch(int rank, const std::string&, const std::string&, bool also_far) override {
    if (also_far) watched_.insert(rank);
  }
  void forget() override {}
  std::vector<Loss> losses() override { return {}; }
  void ask(const std::vector<int>&) override {}
  std::string late_behind(int) override { return {}; }

 private:
  std::set<int>& watched_;
};

const std::string kGroup = "g";

/// About what a peer info is: parts that all ranks or those of a host share, and random bytes.
std::string peer_info_of(int rank) {
  std::string peer_info = "rank " + std::to_string(rank) + " on host-" + std::to_string(rank / 8) +
                          "4c5f1e1c-boot-id/ipc:4026531839/pid:4026531836 posix, sysv, tcp " +
                          std::string(160, 'a');
  uint32_t random = static_cast<uint32_t>(rank) + 1;
  for (int i = 0; i < 56; ++i) {  // its number and key, and what of the address is its own
    random = random * 1664525 + 1013904223;
    peer_info.push_back(static_cast<char>(random >> 24));
  }
  return peer_info;
}

bool is_real(int rank, int size) {
  return rank < 20 || (rank > 250 && rank < 260) || rank % 97 == 0 || rank == size - 1;
}

void run_real(CountingStore& store, int rank, int size) {
  CountingMonitor monitor(store.watched);
  StoreBootstrap bootstrap(store, {.rank = rank,
                                   .size = size,
                                   .group = kGroup,
                                   .timeout = std::chrono::hours(1),
                                   .monitor = &monitor,
                                   .pause = std::chrono::microseconds(1),
                                   .slice = std::chrono::hours(1)});
  {
    std::vector<std::string> expected;
    for (int r = 0; r < size; ++r) expected.push_back(peer_info_of(r));
    EXPECT_TRUE(bootstrap.meet(peer_info_of(rank), {}).all == expected);
  }
  const auto later = bootstrap.exchange("later", std::to_string(rank), [] {});
  EXPECT_EQ(later.back(), std::to_string(size - 1));
  bootstrap.finish([] {});
}

void run_ghost(CountingStore& store, int rank, int size) {
  using Phase = EpochState::Phase;
  const std::string epoch = "q7x2/1/";
  const std::string id = "/" + std::to_string(rank);
  const auto sealed = [&](const std::string& what, const std::string& mine) {
    return publish(JobSecret(""), what, {rank, size, kGroup, "1"}, mine);
  };
  const auto pass_on = [&](const std::string& what, std::string bundle) {
    store.set(epoch + what + id, bundle);
    std::vector<std::string> keys;
    for (const int child : children_of(rank, size, kGatherBranches)) {
      const bool leaf = !has_children(child, size, kGatherBranches);
      keys.push_back(epoch + what + (leaf ? "/" : "/below/") + std::to_string(child));
    }
    if (keys.empty()) return;
    while (!store.check(keys)) store.pause({});
    for (const auto& part : store.get(keys)) bundle += part;
    store.set(epoch + what + "/below" + id, bundle);
  };
  const auto await = [&](const std::string& key, Phase phase) {
    for (;;) {
      const auto found = store.read(key);
      if (found && EpochState::decode(*found).phase >= phase) return;
      store.pause({});
    }
  };
  await("q7x2/state", Phase::kOpen);
  const JoinRecord own{"nonce" + id, size, {}, sealed("peer_info", peer_info_of(rank))};
  pass_on("join", encode_entry(rank, own.encode()));
  await("q7x2/state", Phase::kRoster);
  pass_on("ack", "");
  await("q7x2/state", Phase::kCommitted);
  pass_on("x/later", encode_entry(rank, sealed("later", std::to_string(rank))));
  await(epoch + "after", Phase::kExchanged);
  pass_on("done", "");
}

class StoreBootstrapSize : public ::testing::TestWithParam<int> {};

// What is bounded here grows with the levels of the tree, so with log n: three levels of 32
// branches hold 33,825 ranks.
TEST_P(StoreBootstrapSize, ARankUsesFewKeys) {
  const int size = GetParam();
  Values values;
  std::vector<std::unique_ptr<CountingStore>> stores;
  std::vector<std::unique_ptr<Coroutine>> ranks;
  for (int r = 0; r < size; ++r) {
    stores.push_back(std::make_unique<CountingStore>(values));
    ranks.push_back(std::make_unique<Coroutine>([&, r] {
      const auto run = is_real(r, size) ? run_real : run_ghost;
      run(*stores[static_cast<size_t>(r)], r, size);
    }));
  }
  // In an order that is not that of the ranks, as processes start.
  std::vector<Coroutine*> left;
  for (auto& rank : ranks) left.push_back(rank.get());
  std::reverse(left.begin(), left.end());
  for (int round = 0; !left.empty() && round < 100; ++round) {
    for (Coroutine* rank : left) rank->resume();
    std::erase_if(left, [](Coroutine* rank) { return rank->done(); });
  }
  ASSERT_TRUE(left.empty());

  size_t keys = 0;
  size_t questions = 0;
  size_t watched = 0;
  for (const auto& store : stores) {
    keys = std::max(keys, store->keys.size());
    questions = std::max(questions, store->questions);
    watched = std::max(watched, store->watched.size());
  }
  // Four times a rank gathers from its children. Everything else is one key a purpose.
  const auto branches = static_cast<size_t>(kGatherBranches);
  EXPECT_LE(keys, 5 * branches + 20);
  // A wait is a few questions here, and a child's peer info is one.
  EXPECT_LE(questions, 40 + 2 * branches);
  EXPECT_LE(stores.back()->questions, 16U);
  // Of its children, and rank 0 if that is its parent.
  EXPECT_LE(watched, branches + 1);
  EXPECT_EQ(stores.front()->watched.size(), branches);
  // The roster is compressed: a rank reads less than the peer infos of all.
  const size_t bytes = stores.back()->bytes_read;
  EXPECT_LT(bytes,
            (JobSecret::kSealBytes + peer_info_of(0).size()) * static_cast<size_t>(size) / 2);
  RecordProperty("keys", static_cast<int>(keys));
  RecordProperty("questions", static_cast<int>(questions));
  RecordProperty("questions_of_a_leaf", static_cast<int>(stores.back()->questions));
  RecordProperty("watched", static_cast<int>(watched));
  RecordProperty("bytes_of_a_leaf", static_cast<int>(bytes));
}

// After 10 s rank 0 asks the store for each rank that is late. With sanitizers the largest size
// takes longer than that.
INSTANTIATE_TEST_SUITE_P(Ranks, StoreBootstrapSize,
                         ::testing::ValuesIn(test::kSlowdown == 1 ? std::vector<int>{64, 1024, 4096}
                                                                  : std::vector<int>{64, 1024}),
                         [](const auto& size) { return std::to_string(size.param); });

}  // namespace
}  // namespace q7x2
