#include "transport/bootstrap/known_breaks.h"

#include <chrono>
#include <thread>

#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

// A few times as long as TaskTable waits before it closes a connection. A process that is never
// idle is not waited for any longer.
constexpr std::chrono::milliseconds kPatience{100};
constexpr std::chrono::milliseconds kPause{1};

}  // namespace

void learn_of_breaks(Runtime& runtime) {
  const TimePoint until = Clock::now() + kPatience;
  for (TimePoint now = Clock::now(); now < until; now = Clock::now()) {
    bool is_held_up = false;
    {
      Locked locked(runtime.lock());
      is_held_up = runtime.tasks().is_held_up(locked);
      if (!is_held_up && runtime.peers().is_up_to_date(locked, now)) return;
    }
    runtime.drive();
    if (is_held_up) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace q7x2
