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

}  // namespace q7x2
