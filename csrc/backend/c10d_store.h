// C10dStore: a c10d Store as the bootstrap uses it. Exceptions of torch become Errors of one
// sentence.
//
// If the store's host does not answer, a call to the store does not return for minutes. So calls
// run in their own thread, and the caller of a C10dStore calls `attend` every few milliseconds
// while it waits. If it gives up, the thread is detached, and ends after the call. The host of a
// TCP store is watched meanwhile, so its silence is detected as fast as that of any other host.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/torch_compat.h"
#include "transport/bootstrap/key_store.h"
#include "transport/peer/host_watch.h"

namespace q7x2 {

class C10dStore final : public KeyStore {
 public:
  /// Called repeatedly while an answer is overdue. It may throw to give up the call.
  using Attend = std::function<void()>;

  /// `timeout`: limit for each call, which then throws Error(kTimeout). A call throws
  /// Error(kTransport) if the connection breaks or if the store's host does not answer.
  C10dStore(
      c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout,
      Attend attend = [] {});
  ~C10dStore() override;
  C10dStore(const C10dStore&) = delete;
  C10dStore& operator=(const C10dStore&) = delete;

  /// Used from the next call on.
  void set_attend(Attend attend) { attend_ = std::move(attend); }

  void set(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  using KeyStore::check;
  bool check(const std::vector<std::string>& keys) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;
  void pause(std::chrono::microseconds time) override;

 private:
  class Caller;

  template <typename Call>
  auto ask(Call call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::chrono::milliseconds timeout_;
  Attend attend_;
  std::optional<HostWatch> watch_;  // null: the store does not use TCP
  bool is_owed_answer_ = false;     // a call was given up: the next one also waits for its answer
  std::shared_ptr<Caller> caller_;
};

/// The store without any prefixes.
c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store);

/// The name of the group that each process of a job is making. Ranks that disagree about the name
/// of the next group wait for each other under different keys. With these names, their errors can
/// say so.
class Announcements {
 public:
  /// `root`: the store without any prefixes. Ranks are those of the job.
  Announcements(KeyStore& root, uint64_t rank, std::string group);
  /// " (rank 5 was last seen making the group '7')", or an empty text if the rank makes the same
  /// group.
  std::string of(uint64_t rank) const;
  bool makes_the_same(uint64_t rank) const { return root_.read(key(rank)) == group_; }

 private:
  static std::string key(uint64_t rank) { return "q7x2/makes/" + std::to_string(rank); }

  KeyStore& root_;
  const std::string group_;
};

}  // namespace q7x2
