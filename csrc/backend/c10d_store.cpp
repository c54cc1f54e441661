#include "backend/c10d_store.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/process.h"
#include "base/quiet_thread.h"
#include "transport/net/silence_limit.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// While an answer takes longer than this, `attend` is called in steps of this length.
constexpr milliseconds kOverdue{10};

// An error with torch's text, without the stack of its C++ functions.
Error store_error(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      from_torch != nullptr ? from_torch->what_without_backtrace() : error.what();
  return Error(ErrorCode::kTransport,
               "the store does not answer (has the process that owns it ended?): " +
                   text.substr(0, text.find('\n')));
}

/// Watches the store's host. Nothing if the store does not use TCP, or if its host has no address.
/// An IPv4 address is preferred.
std::optional<HostWatch> watch_of(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto root = root_of(store);
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(root.get());
  if (tcp == nullptr) return std::nullopt;
  const std::vector<IpAddress> addresses = resolve(tcp->getHost());
  if (addresses.empty()) return std::nullopt;
  return HostWatch({addresses.front(), tcp->getPort()}, silence_limit(), Clock::now());
}

}  // namespace

/// The thread that calls the store. It co-owns its state, so it can be detached and outlive the
/// store.
class C10dStore::Caller {
 public:
  static std::shared_ptr<Caller> start() {
    auto caller = std::make_shared<Caller>();
    caller->thread_ = quiet_thread("q7x2-store", [caller] { caller->run(); });
    return caller;
  }
  void post(std::function<void()> call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }
  /// Ends the thread. If it is in a call, it is detached and ends after the call.
  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_stopped_ = true;
      changed_.notify_one();
      if (is_calling_ || home_.is_elsewhere()) {
        thread_.detach();
        return;
      }
    }
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_stopped_) {
      if (calls_.empty()) {
        changed_.wait(lock);
        continue;
      }
      {
        const std::function<void()> call = std::move(calls_.front());
        calls_.pop_front();
        is_calling_ = true;
        lock.unlock();
        call();
        block_at_exit();
      }
      lock.lock();
      is_calling_ = false;
    }
  }

  const ForkGuard home_;
  std::thread thread_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  bool is_calling_ = false;
  bool is_stopped_ = false;
};

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store, milliseconds timeout, Attend attend)
    : store_(std::move(store)),
      timeout_(timeout),
      attend_(std::move(attend)),
      watch_(watch_of(store_)),
      caller_(Caller::start()) {}

C10dStore::~C10dStore() {
  caller_->stop();
}

template <typename Call>
auto C10dStore::ask(Call call) {
  using Result = decltype(call(*store_));
  // The call co-owns the store, because the thread may outlive this object.
  const auto task = std::make_shared<std::packaged_task<Result()>>(
      [store = store_, call = std::move(call)] { return call(*store); });
  std::future<Result> answer = task->get_future();
  caller_->post([task] { (*task)(); });
  const auto asked = Clock::now();
  if (watch_ && !is_owed_answer_) watch_->hear(asked);  // the store has answered all earlier calls
  is_owed_answer_ = true;
  while (answer.wait_for(kOverdue) != std::future_status::ready) {
    attend_();
    const auto now = Clock::now();
    if (watch_ && watch_->is_silent(now)) {
      throw Error(ErrorCode::kTransport, "the group cannot be made: the store's host, " +
                                             watch_->endpoint().text() + watch_->silence(now));
    }
    if (now >= asked + timeout_) {
      throw Error(ErrorCode::kTimeout,
                  "the group cannot be made: the store has not answered within the timeout of " +
                      std::to_string(timeout_.count()) + " ms");
    }
  }
  is_owed_answer_ = false;
  try {
    return answer.get();
  } catch (const std::exception& error) {
    throw store_error(error);
  }
}

void C10dStore::set(const std::string& key, const std::string& value) {
  ask([key, bytes = std::vector<uint8_t>(value.begin(), value.end())](c10d::Store& store) {
    store.set(key, bytes);
  });
}

int64_t C10dStore::add(const std::string& key, int64_t amount) {
  return ask([key, amount](c10d::Store& store) { return store.add(key, amount); });
}

std::string C10dStore::compare_set(const std::string& key, const std::string& expected,
                                   const std::string& desired) {
  return ask([key, expected, desired](c10d::Store& store) {
    const auto bytes = [](const std::string& text) {
      return std::vector<uint8_t>(text.begin(), text.end());
    };
    const std::vector<uint8_t> found = store.compareSet(key, bytes(expected), bytes(desired));
    return std::string(found.begin(), found.end());
  });
}

bool C10dStore::check(const std::vector<std::string>& keys) {
  return ask([keys](c10d::Store& store) { return store.check(keys); });
}

std::vector<std::string> C10dStore::get(const std::vector<std::string>& keys) {
  return ask([keys](c10d::Store& store) {
    std::vector<std::string> values;
    if (store.hasExtendedApi()) {
      for (const auto& value : store.multiGet(keys)) {
        values.emplace_back(value.begin(), value.end());
      }
    } else {
      for (const std::string& key : keys) {
        values.push_back(store.get_to_str(key));
      }
    }
    return values;
  });
}

// TCPStore's own wait is not used, because torch prints two warnings each time when it times out.
void C10dStore::pause(microseconds time) {
  std::this_thread::sleep_for(time);
}

c10::intrusive_ptr<c10d::Store> root_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
}

Announcements::Announcements(KeyStore& root, uint64_t rank, std::string group)
    : root_(root), group_(std::move(group)) {
  root_.set(key(rank), group_);
}

std::string Announcements::of(uint64_t rank) const {
  const std::string group = root_.read(key(rank)).value_or(group_);
  return group == group_ ? ""
                         : " (rank " + std::to_string(rank) +
                               " of the job was last seen making the group '" + group + "')";
}

}  // namespace q7x2
