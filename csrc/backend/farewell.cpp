#include "backend/farewell.h"

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

struct Farewell {
  std::string group;
  std::thread thread;
  std::atomic<bool> is_ended{false};  // it shall end
  std::atomic<bool> is_over{false};
};

using Farewells = std::list<std::shared_ptr<Farewell>>;

/// All of this process. They live as long as it does, and are not destroyed at its end.
struct Registry {
  std::mutex mutex;
  Farewells farewells;

  static Registry& instance() {
    static Registry* const registry = [] {
      // A fork may copy a mutex that another thread holds, and it copies no threads: the child
      // leaves its copies alone.
      ::pthread_atfork(nullptr, nullptr, [] { new (&instance()) Registry; });
      return new Registry;
    }();
    return *registry;
  }

  template <typename Predicate>
  Farewells take(const Predicate& predicate) {
    const std::lock_guard<std::mutex> lock(mutex);
    Farewells taken;
    for (auto at = farewells.begin(); at != farewells.end();) {
      const auto next = std::next(at);
      if (predicate(**at)) taken.splice(taken.end(), farewells, at);
      at = next;
    }
    return taken;
  }
};

void join(const Farewells& farewells) {
  for (const auto& farewell : farewells) {
    farewell->thread.join();
  }
}

}  // namespace

void begin_farewell(const std::string& group,
                    std::function<void(const std::function<void()>& check)> work) {
  join(Registry::instance().take([](const Farewell& each) { return each.is_over.load(); }));
  const auto farewell = std::make_shared<Farewell>();
  farewell->group = group;
  const auto run = [farewell, work = std::move(work)]() mutable {
    work([&] {
      stay_if_ending();
      if (farewell->is_ended) {
        throw Error(ErrorCode::kAborted, "the group is made again");
      }
    });
    work = nullptr;
    farewell->is_over = true;
  };
  Registry& registry = Registry::instance();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  try {
    farewell->thread = quiet_thread("q7x2-farewell", run);
  } catch (const Error&) {
    return;
  }
  registry.farewells.push_back(farewell);
}

void end_farewells(const std::string& group) {
  const Farewells mine =
      Registry::instance().take([&](const Farewell& each) { return each.group == group; });
  for (const auto& farewell : mine) {
    farewell->is_ended = true;
  }
  join(mine);
}

void finish_farewells(const std::function<void()>& interrupt) noexcept {
  const Farewells all = Registry::instance().take([](const Farewell&) { return true; });
  try {
    for (const auto& farewell : all) {
      while (!farewell->is_over) {
        std::this_thread::sleep_for(kNap);
        interrupt();
      }
    }
  } catch (const std::exception&) {
    for (const auto& farewell : all) {
      farewell->is_ended = true;
    }
  }
  join(all);
}

}  // namespace q7x2
