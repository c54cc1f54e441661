// A c10d Store as a bootstrap sees it. A lost connection becomes one sentence.
//
// A call to a store whose host has fallen silent does not return for minutes. So calls run in a
// thread of their own, and the caller looks around every few milliseconds while it waits. If it
// gives up, the thread is left behind with the call, and ends when the call does. Meanwhile a TCP
// store's host is watched, so that its silence is an error as soon as that of any other host.
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
  /// Called while an answer is overdue; may throw to give up the call.
  using Attend = std::function<void()>;

  /// `timeout`: no call takes longer; it throws Error(kTimeout). Each throws Error(kTransport)
  /// where the connection breaks or the store's host falls silent.
  C10dStore(
      c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout,
      Attend attend = [] {});
  ~C10dStore() override;
  C10dStore(const C10dStore&) = delete;
  C10dStore& operator=(const C10dStore&) = delete;

  /// From the next call on.
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
  std::optional<HostWatch> watch_;  // of a TCP store's host
  bool is_owed_answer_ = false;     // to a call that was given up: the next one waits for it, too
  std::shared_ptr<Caller> caller_;
};

/// The store below all prefixes.
c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store);

/// Which group each process of a job is making. Ranks that disagree about the name of the next
/// group wait for each other under different keys; so their errors can say it.
class Announcements {
 public:
  /// `root`: the store below all prefixes. Ranks are those of the job.
  Announcements(KeyStore& root, uint64_t rank, std::string group);
  /// " (rank 5 was last seen making the group '7')", or nothing where it makes the same.
  std::string of(uint64_t rank) const;
  bool makes_the_same(uint64_t rank) const { return root_.read(key(rank)) == group_; }

 private:
  static std::string key(uint64_t rank) { return "q7x2/makes/" + std::to_string(rank); }

  KeyStore& root_;
  const std::string group_;
};

}  // namespace q7x2
