#include "transport/bootstrap/known_breaks.h"

#include <chrono>
#include <thread>

#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// A few times as long as TaskTable waits before it closes a connection.
constexpr std::chrono::milliseconds kQuietWithin{100};
constexpr std::chrono::milliseconds kPause{1};
// UCX sees the end of a connection in one round, and forgets it in the next one.
constexpr int kRounds = 8;

}  // namespace

void await_quiet(Runtime& runtime) {
  const TimePoint until = Clock::now() + kQuietWithin;
  while (Clock::now() < until) {
    {
      Locked locked(runtime.lock());
      if (!runtime.tasks().is_held_up(locked)) return;
    }
    runtime.drive();
    std::this_thread::sleep_for(kPause);
  }
}

void hear_of_breaks(Runtime& runtime) {
  for (int i = 0; i < kRounds; ++i) runtime.drive();
  Locked locked(runtime.lock());
  runtime.peers().look(locked, Clock::now());
}

}  // namespace q7x2
