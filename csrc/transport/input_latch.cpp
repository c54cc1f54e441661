#include "transport/input_latch.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/runtime.h"

namespace q7x2 {

void InputLatch::hold(Locked&, std::weak_ptr<Task> task) {
  held_.push_back(std::move(task));
}

void InputLatch::raise(size_t bytes) noexcept {
  try {
    const std::shared_ptr<Runtime> runtime = runtime_.lock();
    if (!runtime) return;  // and so there is no task
    {
      Locked locked(runtime->lock());
      arrived_.store(bytes, std::memory_order_release);
      for (const std::weak_ptr<Task>& held : held_) {
        std::shared_ptr<Task> task = held.lock();
        if (!task) continue;
        runtime->tasks().inputs_arrived(locked, *task);
        locked.drop_later(std::move(task));
      }
    }
    runtime->parking().note_activity();
    runtime->wake();
  } catch (const std::exception& error) {
    log(Level::kWarn, std::string("a task could not be resumed: ") + error.what());
  }
}

}  // namespace q7x2
