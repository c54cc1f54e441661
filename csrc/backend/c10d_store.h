// A c10d Store as the rendezvous sees it. A lost connection becomes one sentence.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/torch_compat.h"
#include "transport/rendezvous.h"

namespace q7x2 {

class C10dStore final : public KeyStore {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

/// The store below all prefixes.
c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store);

/// Which group each process of a job is making. Ranks that disagree about the name of the next
/// group wait for each other under different keys; so their errors can say it.
class Announcements {
 public:
  /// Ranks are those of the job.
  Announcements(const c10::intrusive_ptr<c10d::Store>& store, uint64_t rank,
                const std::string& group);
  /// " (rank 5 was last seen making the group '7')", or nothing where it makes the same.
  std::string of(uint64_t rank) const;

 private:
  static std::string key(uint64_t rank) { return "q7x2/makes/" + std::to_string(rank); }

  const c10::intrusive_ptr<c10d::Store> root_;
  const std::string group_;
};

}  // namespace q7x2
