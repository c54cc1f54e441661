#include "backend/c10d_store.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <c10/util/Exception.h>

#include "base/error.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr microseconds kShortestNap{50};
constexpr microseconds kLongestNap{50'000};

// What torch says, without the stack of its C++ functions.
Error store_error(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      from_torch != nullptr ? from_torch->what_without_backtrace() : error.what();
  return Error(ErrorCode::kTransport,
               "the store does not answer (has the process that owns it ended?): " +
                   text.substr(0, text.find('\n')));
}

template <typename Call>
auto asking(const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw store_error(error);
  }
}

}  // namespace

void C10dStore::set(const std::string& key, const std::string& value) {
  asking([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

int64_t C10dStore::add(const std::string& key, int64_t amount) {
  return asking([&] { return store_->add(key, amount); });
}

bool C10dStore::check(const std::string& key) {
  return asking([&] { return store_->check({key}); });
}

std::vector<std::string> C10dStore::get(const std::vector<std::string>& keys) {
  return asking([&] {
    std::vector<std::string> values;
    if (store_->hasExtendedApi()) {
      for (const auto& value : store_->multiGet(keys)) {
        values.emplace_back(value.begin(), value.end());
      }
    } else {
      for (const std::string& key : keys) {
        values.push_back(store_->get_to_str(key));
      }
    }
    return values;
  });
}

// By asking again and again: when TCPStore's own wait times out, torch prints two warnings each
// time. A nap is an eighth of the time waited so far, so that it costs little time, and many ranks
// that wait for long do not keep the store busy.
bool C10dStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  const auto started = Clock::now();
  while (!asking([&] { return store_->check(keys); })) {
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - started);
    if (waited >= timeout) {
      return false;
    }
    const microseconds left = timeout - waited;
    std::this_thread::sleep_for(std::min(left, std::clamp(waited / 8, kShortestNap, kLongestNap)));
  }
  return true;
}

c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
}

Announcements::Announcements(const c10::intrusive_ptr<c10d::Store>& store, uint64_t rank,
                             const std::string& group)
    : root_(root_of(store)), group_(group) {
  C10dStore(root_).set(key(rank), group);
}

std::string Announcements::of(uint64_t rank) const {
  C10dStore store(root_);
  if (!store.check(key(rank))) {
    return "";
  }
  const std::string group = store.get({key(rank)}).front();
  return group == group_ ? ""
                         : " (rank " + std::to_string(rank) +
                               " of the job was last seen making the group '" + group + "')";
}

}  // namespace q7x2
