#include "backend/failure_linger.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/quiet_thread.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kNap{2};

struct FailureLinger {
  std::string group;
  std::thread thread;
  std::atomic<bool> is_ended{false};  // it must end
  std::atomic<bool> is_over{false};
};

using Lingers = std::list<std::shared_ptr<FailureLinger>>;

/// All lingers of this process. The registry is never destroyed.
struct Registry {
  std::mutex mutex;
  Lingers lingers;

  static Registry& instance() {
    static Registry* const registry = [] {
      // A fork may copy a mutex that another thread holds, and it copies no threads. So the child
      // gets a new registry.
      ::pthread_atfork(nullptr, nullptr, [] { new (&instance()) Registry; });
      return new Registry;
    }();
    return *registry;
  }

  template <typename Predicate>
  Lingers take(const Predicate& predicate) {
    const std::lock_guard<std::mutex> lock(mutex);
    Lingers taken;
    for (auto at = lingers.begin(); at != lingers.end();) {
      const auto next = std::next(at);
      if (predicate(**at)) taken.splice(taken.end(), lingers, at);
      at = next;
    }
    return taken;
  }
};

void join(const Lingers& lingers) {
  for (const auto& linger : lingers) {
    linger->thread.join();
  }
}

}  // namespace

void begin_failure_linger(const std::string& group,
                          std::function<void(const std::function<void()>& check)> work) {
  join(Registry::instance().take([](const FailureLinger& each) { return each.is_over.load(); }));
  const auto linger = std::make_shared<FailureLinger>();
  linger->group = group;
  const auto run = [linger, work = std::move(work)]() mutable {
    work([&] {
      block_at_exit();
      if (linger->is_ended) {
        throw Error(ErrorCode::kAborted, "the group is made again");
      }
    });
    work = nullptr;
    linger->is_over = true;
  };
  Registry& registry = Registry::instance();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  try {
    linger->thread = quiet_thread("q7x2-linger", run);
  } catch (const Error&) {
    return;
  }
  registry.lingers.push_back(linger);
}

void end_failure_lingers(const std::string& group) {
  const Lingers mine =
      Registry::instance().take([&](const FailureLinger& each) { return each.group == group; });
  for (const auto& linger : mine) {
    linger->is_ended = true;
  }
  join(mine);
}

void finish_failure_lingers(const std::function<void()>& interrupt) noexcept {
  const Lingers all = Registry::instance().take([](const FailureLinger&) { return true; });
  try {
    for (const auto& linger : all) {
      while (!linger->is_over) {
        std::this_thread::sleep_for(kNap);
        interrupt();
      }
    }
  } catch (const std::exception&) {
    for (const auto& linger : all) {
      linger->is_ended = true;
    }
  }
  join(all);
}

}  // namespace q7x2
